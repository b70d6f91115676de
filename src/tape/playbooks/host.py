"""What a playbook needs from the place where it runs: a worker of a pool, or a process without a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tape.errors import (
    LeaseHeld,
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

# What keeps a run from going on just now, and says nothing about what it does.
_AWAY = (LeaseHeld, NotServed, Overloaded, RunInterrupted, ServerStopping, ServerUnreachable, StoreError)


def is_interruption(error: BaseException) -> bool:
    """Whether a run cannot go on for a reason that is not its own: it is left as it is, for later."""
    return isinstance(error, _AWAY) or not isinstance(error, Exception)


Act = Callable[[], Awaitable[Any]]


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Which execution this is: what expressions see as `run`, and Python functions as their parameter `run`."""

    id: str
    path: str
    pool: str = ""
    parent: str = ""
    subscription: str = ""
    message_id: str = ""
    priority: str = ""
    trace: dict[str, Any] = {}


class Host(Protocol):
    """Where a playbook runs."""

    async def perform(self, key: str, step: str, request: Any, act: Act, *, may_wait: bool = False) -> Any:
        """The recorded result of a step; if there is none, act and record what came of it.

        It is durable on return, unless it `may_wait`: then it is before anything else of the run acts.
        """

    async def publish(self, subject: str, payload: Any, key: str) -> None:
        """Append an event to the journal, once for a key."""

    async def load(self, path: str) -> Playbook:
        """A playbook of the catalog; PlaybookNotFound if it is not there."""

    async def start(self, path: str, payload: dict[str, Any], pool: str, key: str) -> str:
        """Start another execution, once for a key; its id."""

    def within(self, key: str, step: str) -> AbstractContextManager[Any]:
        """Code in this block carries out a step: effects that it declares are recorded below the step's key."""


Load = Callable[[str], "Playbook"]
Publish = Callable[[str, Any], Awaitable[None]]
Start = Callable[[str, dict[str, Any], str], Awaitable[str]]


class LocalHost:
    """A process without a server: steps are carried out as they come, and nothing outlives the process.

    What it cannot do by itself is handed in: finding playbooks, publishing, starting other executions.
    """

    def __init__(self, load: Load | None = None, publish: Publish | None = None, start: Start | None = None) -> None:
        self._load = load
        self._publish = publish
        self._start = start

    async def perform(self, key: str, step: str, request: Any, act: Act, *, may_wait: bool = False) -> Any:
        """What acting gives, as JSON would have it."""
        return msgspec.to_builtins(await act(), str_keys=True)

    async def publish(self, subject: str, payload: Any, key: str) -> None:
        """Hand an event on."""
        if self._publish is None:
            raise PlaybookError(f"publishing to {subject} needs a server: this playbook runs without one.")
        await self._publish(subject, payload)

    async def load(self, path: str) -> Playbook:
        """A playbook from wherever this process has them."""
        if self._load is None:
            raise PlaybookNotFound(f"Playbook not found: {path} (this playbook runs without a catalog)")
        return self._load(path)

    async def start(self, path: str, payload: dict[str, Any], pool: str, key: str) -> str:
        """Hand another execution on."""
        if self._start is None:
            raise PlaybookError(f"starting {path} on a pool needs a server: this playbook runs without one.")
        return await self._start(path, payload, pool)

    def within(self, key: str, step: str) -> AbstractContextManager[Any]:
        """Effects outside of a run are ordinary calls."""
        return nullcontext()
