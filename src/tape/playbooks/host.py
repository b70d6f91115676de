"""The port between a playbook and its host: a worker of a pool, or a process without a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tape.errors import (
    DownstreamUnavailable,
    LeaseHeld,
    MessageRetry,
    NotServed,
    Overloaded,
    PlaybookError,
    PlaybookNotFound,
    RunInterrupted,
    ServerStopping,
    ServerUnreachable,
    StoreError,
)

if TYPE_CHECKING:
    from tape.playbooks.document import Playbook

# Errors that interrupt a run without being its own failure.
_INTERRUPTIONS = (
    DownstreamUnavailable,
    LeaseHeld,
    MessageRetry,
    NotServed,
    Overloaded,
    RunInterrupted,
    ServerStopping,
    ServerUnreachable,
    StoreError,
)


def is_interruption(error: BaseException) -> bool:
    """Whether an error interrupts a run without being its own failure; the run is resumed later."""
    return isinstance(error, _INTERRUPTIONS) or not isinstance(error, Exception)


Act = Callable[[], Awaitable[Any]]


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The execution, as `run` in expressions and as the parameter `run` of Python functions."""

    id: str
    path: str
    pool: str = ""
    parent: str = ""
    subscription: str = ""
    message_id: str = ""
    priority: str = ""
    trace: dict[str, Any] = {}
    tenant: str = ""
    # The downstream of its subscription that the run depends on.
    downstream: str = ""


class Host(Protocol):
    """The host of a playbook."""

    async def perform(
        self, key: str, step: str, request: Any, act: Act, *, may_wait: bool = False, idempotent: bool = False
    ) -> Any:
        """The recorded result of a step; if there is none, act and record the result.

        It is durable on return. With `may_wait` it is durable before the next action of the run. A step that is
        `idempotent` need not be recorded if the run is kept as a summary.
        """

    async def publish(self, subject: str, payload: Any, key: str) -> None:
        """Append an event to the journal, once for a key."""

    async def load(self, path: str) -> Playbook:
        """A playbook of the catalog. Raises PlaybookNotFound."""

    async def start(self, path: str, payload: dict[str, Any], pool: str, key: str) -> str:
        """Start another execution, once for a key; its id."""

    def within(self, key: str, step: str) -> AbstractContextManager[Any]:
        """A context for the code of a step: effects that it declares are recorded below the step's key."""


Load = Callable[[str], "Playbook"]
Publish = Callable[[str, Any], Awaitable[None]]
Start = Callable[[str, dict[str, Any], str], Awaitable[str]]


class LocalHost:
    """A host without a server: it executes steps and records nothing.

    Loading playbooks, publishing and starting executions are functions that the caller passes.
    """

    def __init__(self, load: Load | None = None, publish: Publish | None = None, start: Start | None = None) -> None:
        self._load = load
        self._publish = publish
        self._start = start

    async def perform(
        self, key: str, step: str, request: Any, act: Act, *, may_wait: bool = False, idempotent: bool = False
    ) -> Any:
        """The result of the action, as JSON values."""
        return msgspec.to_builtins(await act(), str_keys=True)

    async def publish(self, subject: str, payload: Any, key: str) -> None:
        """Publish with the caller's function."""
        if self._publish is None:
            raise PlaybookError(f"publishing to {subject} needs a server: this playbook runs without one.")
        await self._publish(subject, payload)

    async def load(self, path: str) -> Playbook:
        """Load with the caller's function."""
        if self._load is None:
            raise PlaybookNotFound(f"Playbook not found: {path} (this playbook runs without a catalog)")
        return self._load(path)

    async def start(self, path: str, payload: dict[str, Any], pool: str, key: str) -> str:
        """Start with the caller's function."""
        if self._start is None:
            raise PlaybookError(f"starting {path} on a pool needs a server: this playbook runs without one.")
        return await self._start(path, payload, pool)

    def within(self, key: str, step: str) -> AbstractContextManager[Any]:
        """Effects outside of a run are ordinary calls."""
        return nullcontext()
