"""Outcomes of runs feed the circuits: that a run was accepted does not mean that its downstream answered.

The server counts per downstream how often runs found it unavailable and how often they got an answer. While a circuit
is open, the server holds the downstream: its tasks wait in their pool, and one of them is let go as a probe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from tape.subscriptions.dispatch.circuit import CircuitPhase, Circuits

# Waiting runs that are let go at once after a circuit has closed, unless a rate is set.
RELEASED_AT_ONCE = 500
# How often a hold is renewed; the server lets it lapse after 10 minutes.
RENEW_HOLD_MS = 60_000


class DownstreamCounts(NamedTuple):
    """What the server has counted for a downstream. The counts only grow."""

    failures: int = 0
    successes: int = 0
    # Whether the last outcome was a failure.
    is_failing: bool = False
    held: bool = False


class ResumedRun(NamedTuple):
    """A run that waited for its downstream and goes on."""

    execution_id: int
    message_id: str


class Downstreams(Protocol):
    """The downstreams of one subscription, as the server sees them."""

    async def read(self) -> Mapping[str, DownstreamCounts]:
        """The counts by name; a downstream without any outcome is left out."""

    async def hold(self, name: str) -> None:
        """Let the tasks of a downstream wait; called again, it renews the hold, which lapses after 10 minutes."""

    async def probe(self, name: str) -> ResumedRun | None:
        """Let one waiting task of a held downstream go; None if none waits."""

    async def release(self, name: str, limit: int) -> Sequence[ResumedRun]:
        """Hold a downstream no longer, and let up to `limit` of its waiting tasks go, the oldest first."""


class OutcomeFeed:
    """Records the outcomes of runs in the circuits of a subscription, and holds and releases its downstreams."""

    def __init__(
        self,
        downstreams: Downstreams,
        circuits: Circuits,
        *,
        probe_timeout_ms: int,
        now_ms: Callable[[], int],
        resumed: Callable[[ResumedRun], None],
    ) -> None:
        self._downstreams = downstreams
        self._circuits = circuits
        self._probe_timeout_ms = probe_timeout_ms
        self._now_ms = now_ms
        self._resumed = resumed
        self._known: dict[str, DownstreamCounts] | None = None
        self._probe_until_ms: dict[str, int] = {}
        self._probes: dict[str, ResumedRun] = {}
        self._held_at_ms: dict[str, int] = {}
        # At first all: the runtime before this one may have ended before it had released every task.
        self._releasing: set[str] = {name for name, _ in circuits}

    def await_probe(self, name: str) -> None:
        """A message was accepted as the probe of a circuit: its outcome is awaited."""
        if self._circuits[name].phase is CircuitPhase.HALF_OPEN:
            self._probe_until_ms[name] = self._now_ms() + self._probe_timeout_ms

    def is_failing(self, name: str) -> bool:
        """Whether the last run that needed a downstream found it unavailable, or nothing is known yet.

        If not, a circuit is open because no server took the dispatches, and an accepted one closes it.
        """
        return self._known is None or self._known.get(name, DownstreamCounts()).is_failing

    async def step(self, limit: int = RELEASED_AT_ONCE) -> None:
        """Read the counts, record what is new, then hold, probe and release as the circuits say."""
        found = await self._downstreams.read()
        self._record(found)
        for name, circuit in self._circuits:
            counts = found.get(name, DownstreamCounts())
            if circuit.phase is CircuitPhase.CLOSED:
                await self._release(name, limit, is_held=counts.held)
                continue
            if not (counts.is_failing or counts.held):
                continue  # no server took the dispatches: the runs that it has need not wait
            await self._hold(name, is_held=counts.held)
            if circuit.is_probe_due(self._now_ms()) and await self._send_probe(name):
                circuit.decide(self._now_ms())
                self.await_probe(name)
            elif circuit.phase is CircuitPhase.HALF_OPEN:
                await self._follow_probe(name)

    def _record(self, found: Mapping[str, DownstreamCounts]) -> None:
        """Record the outcomes since the last look. Those from before the first look are history; held is open."""
        now_ms, first_look = self._now_ms(), self._known is None
        known = self._known or {}
        for name, counts in found.items():
            if name not in dict(self._circuits):
                continue
            if first_look:
                if counts.held:
                    self._circuits[name].reopen(now_ms)
                continue
            before = known.get(name, DownstreamCounts())
            failed, succeeded = counts.failures - before.failures, counts.successes - before.successes
            if succeeded:
                self._circuits.record(name, succeeded=True, now_ms=now_ms)
                failed = min(failed, 1) if counts.is_failing else 0
            for _ in range(min(failed, self._circuits[name].trip_after)):
                self._circuits.record(name, succeeded=False, now_ms=now_ms)
            if failed or succeeded:
                self._settle_probe(name, succeeded=bool(succeeded))
        self._known = dict(found)

    def _settle_probe(self, name: str, *, succeeded: bool) -> None:
        self._probe_until_ms.pop(name, None)
        run = self._probes.pop(name, None)
        if run is not None and succeeded:
            self._resumed(run)

    async def _send_probe(self, name: str) -> bool:
        if (run := await self._downstreams.probe(name)) is not None:
            self._probes[name] = run
        return run is not None

    async def _follow_probe(self, name: str) -> None:
        """Let the message that was accepted as a probe go, as soon as it has its task; give it up after its time."""
        until_ms = self._probe_until_ms.get(name)
        if until_ms is not None and self._now_ms() >= until_ms:
            self._settle_probe(name, succeeded=False)
            self._circuits[name].abandon_probe(self._now_ms())
        elif until_ms is not None and name not in self._probes:
            await self._send_probe(name)

    async def _hold(self, name: str, *, is_held: bool) -> None:
        now_ms = self._now_ms()
        if not is_held or now_ms - self._held_at_ms.get(name, 0) >= RENEW_HOLD_MS:
            await self._downstreams.hold(name)
            self._held_at_ms[name] = now_ms

    async def _release(self, name: str, limit: int, *, is_held: bool) -> None:
        if not is_held and name not in self._releasing:
            return
        runs = await self._downstreams.release(name, limit)
        for run in runs:
            self._resumed(run)
        if len(runs) < limit:
            self._releasing.discard(name)
        else:
            self._releasing.add(name)

    @property
    def is_busy(self) -> bool:
        """Whether there is something to look after soon."""
        return bool(self._releasing or self._probe_until_ms) or not self._circuits.are_closed
