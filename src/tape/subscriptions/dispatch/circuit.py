"""Circuit breakers: one per declared downstream, closed until the downstream fails `trip_after` times in a row.

A circuit has pure transitions: no clock, no thread, no network. Its owner records the outcome of each dispatch and
probe, and calls `decide` before each message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

import msgspec

from tape.base import structs
from tape.subscriptions.routing import route_downstream


class CircuitPhase(StrEnum):
    """Closed passes every message, open none, half open a single probe."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class CircuitDecision(StrEnum):
    """What to do with a message. A probe is a dispatch whose outcome closes or re-opens the circuit."""

    DISPATCH = "dispatch"
    PROBE = "probe"
    SPOOL = "spool"


class CircuitState(msgspec.Struct, kw_only=True):
    """The state of a circuit, kept across restarts. A failed probe updates `opened_at_ms`, not `down_since_ms`."""

    phase: CircuitPhase = CircuitPhase.CLOSED
    consecutive_failures: int = 0
    opened_at_ms: int | None = None
    last_transition_ms: int = 0
    trips: int = 0
    down_since_ms: int | None = None


class CircuitTransition(NamedTuple):
    """A circuit opened or closed."""

    downstream: str
    phase: CircuitPhase
    consecutive_failures: int
    trips: int


class Circuit:
    """The breaker of one downstream: opens after `trip_after` failures in a row, probes `probe_after_ms` later."""

    def __init__(self, *, trip_after: int, probe_after_ms: int, state: CircuitState | None = None) -> None:
        self.trip_after = trip_after
        self.probe_after_ms = probe_after_ms
        self.state = state or CircuitState()

    @property
    def phase(self) -> CircuitPhase:
        """The current phase."""
        return self.state.phase

    def decide(self, now_ms: int) -> CircuitDecision:
        """What to do with the next message. PROBE is returned once; its outcome must be recorded."""
        state = self.state
        if state.phase is CircuitPhase.CLOSED:
            return CircuitDecision.DISPATCH
        if self.is_probe_due(now_ms):
            self._move(CircuitPhase.HALF_OPEN, now_ms)
            return CircuitDecision.PROBE
        return CircuitDecision.SPOOL

    def is_probe_due(self, now_ms: int) -> bool:
        """Whether the next message is sent as a probe."""
        return self.state.phase is CircuitPhase.OPEN and self._waited_enough(now_ms)

    def down_for_ms(self, now_ms: int) -> int:
        """How long the downstream has been unavailable, in ms; 0 if it is available."""
        if self.state.down_since_ms is None:
            return 0
        # A clock that was set back must not extend the outage (as in _waited_enough).
        self.state.down_since_ms = min(self.state.down_since_ms, now_ms)
        return now_ms - self.state.down_since_ms

    def record_success(self, now_ms: int) -> bool:
        """Record that the downstream answered. True if that closed the circuit."""
        was_closed = self.state.phase is CircuitPhase.CLOSED
        self.state.consecutive_failures = 0
        self.state.opened_at_ms = self.state.down_since_ms = None
        if not was_closed:
            self._move(CircuitPhase.CLOSED, now_ms)
        return not was_closed

    def record_failure(self, now_ms: int) -> bool:
        """Record a failure. True if that opened the circuit; a failed probe re-opens it with a new timer."""
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

    def reopen(self, now_ms: int) -> None:
        """Open a circuit that was open when an earlier process ended; its probe is due at once."""
        if self.state.phase is CircuitPhase.CLOSED:
            self.state.opened_at_ms = now_ms - self.probe_after_ms
            self.state.down_since_ms = now_ms
            self._move(CircuitPhase.OPEN, now_ms)

    def abandon_probe(self, now_ms: int) -> None:
        """The probe has no outcome (restart, stop): the next message may probe."""
        if self.state.phase is CircuitPhase.HALF_OPEN:
            self._move(CircuitPhase.OPEN, now_ms)

    def _waited_enough(self, now_ms: int) -> bool:
        # A clock that was set back must not keep a circuit open longer than probe_after_ms.
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
        self._declared = tuple(self._circuits)
        self._changed = changed

    def __iter__(self) -> Iterator[tuple[str, Circuit]]:
        return iter(self._circuits.items())

    def __getitem__(self, downstream: str) -> Circuit:
        return self._circuits[downstream]

    @property
    def are_closed(self) -> bool:
        """Whether every circuit is closed."""
        return all(circuit.phase is CircuitPhase.CLOSED for circuit in self._circuits.values())

    def route(self, pool: str | None) -> str:
        """The downstream of runs on a pool."""
        return route_downstream(self._declared, pool or "")

    def add(self, downstream: str) -> None:
        """Add the circuit of a downstream that a step names and the document does not declare."""
        self._circuits.setdefault(downstream, self._make())

    def decide(self, downstream: str, now_ms: int) -> CircuitDecision:
        """What to do with the next message for a downstream."""
        return self._circuits[downstream].decide(now_ms)

    def record(self, downstream: str, *, succeeded: bool, now_ms: int) -> CircuitTransition | None:
        """Record an outcome. Passes the transition that it caused to `changed` and returns it."""
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
        """Restore a snapshot. Downstreams that are no longer declared are ignored."""
        for name, state in structs.decode(snapshot, dict[str, CircuitState]).items():
            if name in self._circuits:
                self._circuits[name] = circuit = self._make(state=state)
                circuit.abandon_probe(now_ms)

    def describe(self) -> Mapping[str, Mapping[str, Any]]:
        """The states by downstream, as JSON values."""
        return {name: msgspec.to_builtins(circuit.state) for name, circuit in self._circuits.items()}
