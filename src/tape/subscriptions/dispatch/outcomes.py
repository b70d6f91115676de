"""Outcomes of runs feed the circuits: that a run was accepted does not mean that its downstream answered.

The server counts per downstream how often runs found it unavailable and how often they got an answer. While a circuit
is open, the server holds the downstream: its tasks wait in their pool, and one of them is let go as a probe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from tape.subscriptions.dispatch.circuit import Circuit, CircuitPhase, Circuits

# Waiting runs that are let go at once after a circuit has closed, unless a rate is set.
RELEASED_AT_ONCE = 500
# How often a hold is renewed; the server lets it lapse after 10 minutes.
RENEW_HOLD_MS = 60_000
# The message of the last probe is tried again when no other came to be the probe for so long.
OTHERS_FIRST_MS = 2_000
# A message that was accepted as a probe has its task after so long, or waits for an earlier one of its key.
TASK_DUE_MS = 5_000


class DownstreamCounts(NamedTuple):
    """What the server has counted for a downstream. The counts only grow."""

    failures: int = 0
    successes: int = 0
    # Whether the last outcome was a failure.
    is_failing: bool = False
    held: bool = False
    has_waiting: bool = False
    # Whether the task that was let go as a probe is still open.
    is_probe_open: bool = False


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

    async def probe(self, name: str, *, may_repeat: bool) -> ResumedRun | None:
        """Let one waiting task of a held downstream go; None if none waits.

        Each call lets another one go, in turns. Without `may_repeat`, the last one is not let go twice running.
        """

    async def release(self, name: str, limit: int) -> Sequence[ResumedRun]:
        """Hold a downstream no longer, and let up to `limit` of its waiting tasks go, the oldest first."""


class OutcomeFeed:
    """Records the outcomes of runs in the circuits of a subscription, and holds and releases its downstreams.

    Several processes can receive the deliveries of a push subscription. One that has received none (`keeps` is false)
    follows the outcomes and leaves it to the others to hold, probe and release.
    """

    def __init__(
        self,
        downstreams: Downstreams,
        circuits: Circuits,
        *,
        probe_timeout_ms: int,
        now_ms: Callable[[], int],
        resumed: Callable[[ResumedRun], None],
        keeps: bool = True,
    ) -> None:
        self.keeps = keeps
        self._downstreams = downstreams
        self._circuits = circuits
        self._probe_timeout_ms = probe_timeout_ms
        self._now_ms = now_ms
        self._resumed = resumed
        self._known: dict[str, DownstreamCounts] | None = None
        # When the outcome of a probe began to be awaited.
        self._probing_since_ms: dict[str, int] = {}
        self._probes: dict[str, ResumedRun] = {}
        self._held_at_ms: dict[str, int] = {}
        # At first all: the runtime before this one may have ended before it had released every task.
        self._releasing: set[str] = {name for name, _ in circuits}
        self._due_since_ms: dict[str, int] = {}
        # Downstreams with a declared probe, and whether it failed.
        self._is_probed_down: dict[str, bool] = {}

    def note_probe(self, name: str, *, is_up: bool) -> None:
        """Record the result of the declared probe of a downstream."""
        self._is_probed_down[name] = not is_up

    def await_probe(self, name: str) -> None:
        """A message was accepted as the probe of a circuit: its outcome is awaited."""
        if self._circuits[name].phase is CircuitPhase.HALF_OPEN:
            self._probing_since_ms[name] = self._now_ms()

    def abandon_probe(self, name: str) -> None:
        """A message that was to be the probe of a circuit has no run: the next message is tried."""
        if name not in self._probing_since_ms:
            self._circuits[name].abandon_probe(self._now_ms())

    def is_answer(self, name: str) -> bool:
        """Whether an accepted dispatch closes the circuit of a downstream: it is open because no server took any.

        Not so if the last run found the downstream unavailable, if nothing is known yet, or if a probe is declared.
        """
        if name in self._is_probed_down or self._known is None:
            return False
        return not self._known.get(name, DownstreamCounts()).is_failing

    def has_waiting(self, name: str) -> bool:
        """Whether runs waited for a downstream at the last look."""
        return (self._known or {}).get(name, DownstreamCounts()).has_waiting

    async def step(self, limit: int = RELEASED_AT_ONCE) -> None:
        """Read the counts, record what is new, then hold, probe and release as the circuits say."""
        found = await self._downstreams.read()
        self._record(found)
        for name, circuit in list(self._circuits) if self.keeps else ():
            counts = found.get(name, DownstreamCounts())
            if circuit.phase is CircuitPhase.CLOSED:
                self._due_since_ms.pop(name, None)
                self._settle_probe(name)
                await self._release(name, limit, is_held=counts.held)
            elif counts.is_failing or counts.held or self._is_probed_down.get(name):
                await self._hold(name, is_held=counts.held)
                await self._probe(name, circuit, counts)
            elif circuit.phase is CircuitPhase.HALF_OPEN and name in self._probing_since_ms:
                # The dispatches found no server, and one took this message: the runs that it has need not wait.
                self._circuits.record(name, succeeded=True, now_ms=self._now_ms())

    def _record(self, found: Mapping[str, DownstreamCounts]) -> None:
        """Record the outcomes since the last look. Those from before the first look are history; held is open."""
        now_ms, first_look = self._now_ms(), self._known is None
        known = self._known or {}
        for name, counts in found.items():
            before = known.get(name, DownstreamCounts())
            failed, succeeded = counts.failures - before.failures, counts.successes - before.successes
            if first_look:
                if counts.held:
                    self.keeps = True
                    self._circuits.add(name)
                    self._circuits[name].reopen(now_ms)
                continue
            if not (failed or succeeded):
                continue
            self._circuits.add(name)
            if succeeded:
                self._circuits.record(name, succeeded=True, now_ms=now_ms)
                failed = min(failed, 1) if counts.is_failing else 0
            for _ in range(min(failed, self._circuits[name].trip_after)):
                self._circuits.record(name, succeeded=False, now_ms=now_ms)
            self._settle_probe(name, is_resumed=bool(succeeded))
        self._known = dict(found)

    def _settle_probe(self, name: str, *, is_resumed: bool = True) -> None:
        self._probing_since_ms.pop(name, None)
        run = self._probes.pop(name, None)
        if run is not None and is_resumed:
            self._resumed(run)

    async def _probe(self, name: str, circuit: Circuit, counts: DownstreamCounts) -> None:
        if circuit.phase is CircuitPhase.HALF_OPEN:
            await self._follow_probe(name, circuit, counts)
        elif circuit.is_probe_due(now_ms := self._now_ms()):
            due_since_ms = self._due_since_ms.setdefault(name, now_ms)
            may_repeat = now_ms - due_since_ms >= OTHERS_FIRST_MS
            if counts.has_waiting and await self._send_probe(name, may_repeat=may_repeat):
                circuit.decide(now_ms)
                self.await_probe(name)

    async def _send_probe(self, name: str, *, may_repeat: bool) -> bool:
        if (run := await self._downstreams.probe(name, may_repeat=may_repeat)) is not None:
            self._probes[name] = run
            self._due_since_ms.pop(name, None)
        return run is not None

    async def _follow_probe(self, name: str, circuit: Circuit, counts: DownstreamCounts) -> None:
        """Let the message that was accepted as a probe go, as soon as it has its task.

        A probe whose run ends without needing the downstream, or has no outcome in time, does not count: the next
        message is tried.
        """
        since_ms = self._probing_since_ms.get(name)
        if since_ms is None:
            return  # it is being dispatched
        waited_ms = self._now_ms() - since_ms
        if name not in self._probes:
            # It may wait behind the last probe, with the same ordering key: then that one is tried again.
            may_repeat = waited_ms >= OTHERS_FIRST_MS
            if counts.has_waiting and await self._send_probe(name, may_repeat=may_repeat):
                return
            is_over = waited_ms >= TASK_DUE_MS
        else:
            is_over = not counts.is_probe_open
        if is_over or waited_ms >= self._probe_timeout_ms:
            self._settle_probe(name, is_resumed=is_over)
            circuit.abandon_probe(self._now_ms())

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
        return bool(self._releasing or self._probing_since_ms) or not self._circuits.are_closed
