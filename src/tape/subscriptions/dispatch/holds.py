"""Holds: a subscription whose configuration lets no run start keeps its messages where they are, and goes on by itself.

A missing playbook or secret, or a server that cannot be reached, is no property of a message: while the subscription
is held nothing is fetched, so that the source does not use up its redeliveries.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from tape.base.retry import UNLIMITED, Backoff, RetryPolicy
from tape.base.telemetry.metrics import Metrics
from tape.errors import NotAPlaybook, PlaybookNotFound, SecretNotBound, SecretNotFound, TapeError

log = logging.getLogger(__name__)

# A held subscription is checked after 0.5 s, 1 s, 2 s, 4 s, and then every 5 s.
HOLD_RETRY = RetryPolicy(max_attempts=UNLIMITED, initial_interval_s=0.5, max_interval_s=5.0, jitter=0.2)
# A hold that begins so soon after the last one continues with its delays.
FLAPPING_S = 60.0
# Retry-After of a delivery to a held subscription, in seconds.
RETRY_AFTER_S = 5
# Errors of a dispatch that are the subscription's, not the message's.
CONFIGURATION_ERRORS = frozenset({PlaybookNotFound.code, NotAPlaybook.code})
_SECRET_ERRORS = frozenset({SecretNotFound.code, SecretNotBound.code})


class ConfigurationProblem(NamedTuple):
    """Why a subscription cannot start runs. `kind` is `playbook`, `secret` or `document`."""

    kind: str
    name: str
    reason: str


class ReadinessCheck(Protocol):
    """Asks whether a subscription can start runs, and records that it is held."""

    # Whether the same server starts the runs: while it does not answer, no run starts.
    asks_server: bool

    async def find_problems(self) -> Sequence[ConfigurationProblem]:
        """What prevents runs from starting. Raises a TapeError if the server cannot be asked."""

    async def report(self, reasons: Sequence[str]) -> None:
        """Record why the subscription is held; no reasons: it is held no longer."""


class Hold:
    """Holds one subscription from `begin` until its check finds no problem.

    `playbook` is the one of its document; others, which headers choose, matter once a message asked for them.
    Without a `check` nothing is ever held.
    """

    def __init__(
        self,
        path: str,
        playbook: str,
        check: ReadinessCheck | None,
        metrics: Metrics | None = None,
        *,
        changed: Callable[[], None] = lambda: None,
        retry: RetryPolicy = HOLD_RETRY,
    ) -> None:
        self.reasons: tuple[str, ...] = ()
        self._path = path
        self._playbooks = {playbook}
        self._check = check
        self._metrics = metrics
        self._changed = changed
        self._backoff = Backoff(retry)
        self._since = 0.0
        self._ended_at = float("-inf")
        self._reported: tuple[str, ...] | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def is_held(self) -> bool:
        """Whether nothing may be fetched or dispatched."""
        return bool(self.reasons)

    def held_for_ms(self) -> int:
        """For how long it is held."""
        return int((time.monotonic() - self._since) * 1_000) if self.is_held else 0

    async def start(self, *, ignore_outage: bool = False) -> None:
        """Check before the first message is fetched. `ignore_outage`: circuits and spool cope with an outage."""
        if self._check is None or self.is_held:
            return
        try:
            found = self._relevant(await self._check.find_problems())
        except TapeError as error:
            if ignore_outage:
                return
            found = (_outage(error),)
        self._hold(found)

    def begin(self, reason: str, playbook: str = "") -> None:
        """Hold the subscription: a dispatch failed because of its configuration."""
        if self._check is None:
            return
        if playbook:
            self._playbooks.add(playbook)
        if not self.is_held:
            self._hold((reason,))

    def begin_outage(self, reason: str) -> None:
        """Hold the subscription if the server that starts its runs did not answer: it is asked, not probed."""
        if self._check is not None and self._check.asks_server:
            self.begin(_outage(reason))

    async def close(self) -> None:
        """Stop checking. What was recorded stays, for the process that takes over."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None
        self._count(0)

    def _hold(self, reasons: Sequence[str]) -> None:
        self.reasons = tuple(reasons)
        if self.is_held:
            self._since = time.monotonic()
            if self._since - self._ended_at > FLAPPING_S:
                self._backoff.reset()
            log.warning("%s is held, its messages wait: %s", self._path, " ".join(self.reasons))
        self._count(int(self.is_held))
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch(), name=f"tape-hold {self._path}")

    async def _watch(self) -> None:
        while True:
            await self._report()
            if not self.is_held and self._reported == ():
                return
            await self._backoff.wait_async()
            if not self.is_held:
                continue  # the release is not recorded yet
            found = await self._find()
            if found:
                if found != self.reasons:
                    log.warning("%s is held: %s", self._path, " ".join(found))
                self.reasons = found
                continue
            self.reasons = ()
            self._ended_at = time.monotonic()
            self._count(0)
            log.info("%s is held no longer", self._path)
            self._changed()

    async def _find(self) -> tuple[str, ...]:
        assert self._check is not None
        try:
            return self._relevant(await self._check.find_problems())
        except TapeError as error:
            return (_outage(error),)

    def _relevant(self, found: Sequence[ConfigurationProblem]) -> tuple[str, ...]:
        return tuple(each.reason for each in found if each.kind != "playbook" or each.name in self._playbooks)

    async def _report(self) -> None:
        assert self._check is not None
        reasons = self.reasons
        if reasons == self._reported:
            return
        try:
            await self._check.report(reasons)
        except TapeError as error:
            log.debug("%s: the hold is not recorded yet: %s", self._path, error)
        else:
            self._reported = reasons

    def _count(self, value: int) -> None:
        if self._metrics is not None:
            self._metrics.held.labels(self._path).set(value)


def _outage(error: TapeError | str) -> str:
    return f"The server that starts its runs does not answer: {error}"


def is_configuration_error(error: TapeError) -> bool:
    """Whether an error of a dispatch, by its code or the one of a server's answer, is the subscription's."""
    return _code_of(error) in CONFIGURATION_ERRORS


def is_missing_secret(error: TapeError) -> bool:
    """Whether a secret that the subscription names is not set, or not for the host that it is needed for."""
    return _code_of(error) in _SECRET_ERRORS


def _code_of(error: TapeError) -> str:
    return getattr(error, "error_code", "") or error.code
