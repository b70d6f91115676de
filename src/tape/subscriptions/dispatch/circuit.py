"""Whether a downstream can be reached: one circuit per declared downstream, closed until it fails too often.

A circuit is a value with pure transitions: no clock, no thread, no network of its own. Who holds it feeds it with the
outcome of each dispatch and of each probe, and asks before each message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

import msgspec


class CircuitPhase(StrEnum):
    """Closed lets everything pass, open nothing, half open a single probe."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class CircuitDecision(StrEnum):
    """What a message may do now. A probe is a dispatch whose outcome closes or re-opens the circuit."""

    DISPATCH = "dispatch"
    PROBE = "probe"
    SPOOL = "spool"


class CircuitState(msgspec.Struct, kw_only=True):
    """What is kept of a circuit across restarts. A failed probe renews `opened_at_ms`, not `down_since_ms`."""

    phase: CircuitPhase = CircuitPhase.CLOSED
    consecutive_failures: int = 0
    opened_at_ms: int | None = None
    last_transition_ms: int = 0
    trips: int = 0
    down_since_ms: int | None = None


class CircuitTransition(NamedTuple):
    """A circuit that has just opened or closed."""

    downstream: str
    phase: CircuitPhase
    consecutive_failures: int
    trips: int


class Circuit:
    """One downstream: opens after `trip_after` failures in a row, lets one probe pass `probe_after_ms` later."""

    def __init__(self, *, trip_after: int, probe_after_ms: int, state: CircuitState | None = None) -> None:
        self.trip_after = trip_after
        self.probe_after_ms = probe_after_ms
        self.state = state or CircuitState()

    @property
    def phase(self) -> CircuitPhase:
        """Where the circuit stands."""
        return self.state.phase

    def decide(self, now_ms: int) -> CircuitDecision:
        """What the next message may do. PROBE is answered once; its outcome must be recorded."""
        state = self.state
        if state.phase is CircuitPhase.CLOSED:
            return CircuitDecision.DISPATCH
        if self.is_probe_due(now_ms):
            self._move(CircuitPhase.HALF_OPEN, now_ms)
            return CircuitDecision.PROBE
        return CircuitDecision.SPOOL

    def is_probe_due(self, now_ms: int) -> bool:
        """Whether the next message may pass as a probe."""
        return self.state.phase is CircuitPhase.OPEN and self._waited_enough(now_ms)

    def down_for_ms(self, now_ms: int) -> int:
        """For how long the downstream has been away; 0 while it is there."""
        if self.state.down_since_ms is None:
            return 0
        # As below: the time that a clock was set back by is not waited for.
        self.state.down_since_ms = min(self.state.down_since_ms, now_ms)
        return now_ms - self.state.down_since_ms

    def record_success(self, now_ms: int) -> bool:
        """The downstream answered. True if that closed the circuit."""
        was_closed = self.state.phase is CircuitPhase.CLOSED
        self.state.consecutive_failures = 0
        self.state.opened_at_ms = self.state.down_since_ms = None
        if not was_closed:
            self._move(CircuitPhase.CLOSED, now_ms)
        return not was_closed

    def record_failure(self, now_ms: int) -> bool:
        """The downstream failed. True if that opened the circuit; a failed probe opens it with a fresh timer."""
        state = self.state
        state.consecutive_failures += 1
        if state.phase is CircuitPhase.OPEN or (
            state.phase is CircuitPhase.CLOSED and state.consecutive_failures < self.trip_after
        ):
            return False
        state.opened_at_ms = now_ms
        state.down_since_ms = now_ms if state.down_since_ms is None else state.down_since_ms
        state.trips += 1
        self._move(CircuitPhase.OPEN, now_ms)
        return True

    def abandon_probe(self, now_ms: int) -> None:
        """The probe that was let pass will have no outcome (a restart, a stop): the next message may try again."""
        if self.state.phase is CircuitPhase.HALF_OPEN:
            self._move(CircuitPhase.OPEN, now_ms)

    def _waited_enough(self, now_ms: int) -> bool:
        # A clock that was set back must not keep a circuit open for longer than it waits anyway.
        opened = min(self.state.opened_at_ms or 0, now_ms)
        self.state.opened_at_ms = opened
        return now_ms - opened >= self.probe_after_ms

    def _move(self, phase: CircuitPhase, now_ms: int) -> None:
        self.state.phase = phase
        self.state.last_transition_ms = now_ms


class Circuits:
    """The circuits of one subscription, by downstream."""

    def __init__(
        self,
        downstreams: Iterable[str],
        *,
        trip_after: int,
        probe_after_ms: int,
        changed: Callable[[CircuitTransition], None] = lambda transition: None,
    ) -> None:
        self._make = partial(Circuit, trip_after=trip_after, probe_after_ms=probe_after_ms)
        self._circuits = {name: self._make() for name in downstreams} or {"default": self._make()}
        self._changed = changed

    def __iter__(self) -> Iterator[tuple[str, Circuit]]:
        return iter(self._circuits.items())

    def __getitem__(self, downstream: str) -> Circuit:
        return self._circuits[downstream]

    @property
    def are_closed(self) -> bool:
        """Whether every downstream may be dispatched to."""
        return all(circuit.phase is CircuitPhase.CLOSED for circuit in self._circuits.values())

    def route(self, target: str | None) -> str:
        """The downstream that a resolved target depends on: the one of its name, else `default`, else the first."""
        if target in self._circuits:
            return str(target)
        return "default" if "default" in self._circuits else min(self._circuits)

    def decide(self, downstream: str, now_ms: int) -> CircuitDecision:
        """What the next message for a downstream may do."""
        return self._circuits[downstream].decide(now_ms)

    def record(self, downstream: str, *, succeeded: bool, now_ms: int) -> CircuitTransition | None:
        """Feed an outcome; the transition that it caused is told to `changed` and returned."""
        circuit = self._circuits[downstream]
        moved = circuit.record_success(now_ms) if succeeded else circuit.record_failure(now_ms)
        if not moved:
            return None
        state = circuit.state
        transition = CircuitTransition(downstream, state.phase, state.consecutive_failures, state.trips)
        self._changed(transition)
        return transition

    def snapshot(self) -> bytes:
        """All states as one JSON object, by downstream."""
        return msgspec.json.encode({name: circuit.state for name, circuit in self._circuits.items()})

    def restore(self, snapshot: bytes, now_ms: int) -> None:
        """Continue from a snapshot. Downstreams that are no longer declared are forgotten."""
        for name, state in msgspec.json.decode(snapshot, type=dict[str, CircuitState]).items():
            if name in self._circuits:
                self._circuits[name] = circuit = self._make(state=state)
                circuit.abandon_probe(now_ms)

    def describe(self) -> Mapping[str, Mapping[str, Any]]:
        """The states, for people and for JSON."""
        return {name: msgspec.to_builtins(circuit.state) for name, circuit in self._circuits.items()}
