"""A downstream that fails too often is left alone, and is tried again by a single message."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tape.subscriptions.dispatch.circuit import Circuit, CircuitDecision, CircuitPhase, Circuits, CircuitTransition


def opened(at: int = 0) -> Circuit:
    circuit = Circuit(trip_after=3, probe_after_ms=1000)
    for _ in range(3):
        circuit.record_failure(at)
    return circuit


def test_it_opens_after_so_many_failures_in_a_row() -> None:
    circuit = Circuit(trip_after=3, probe_after_ms=1000)
    assert [circuit.record_failure(0), circuit.record_failure(0)] == [False, False]
    circuit.record_success(0)
    assert [circuit.record_failure(0), circuit.record_failure(0), circuit.record_failure(0)] == [False, False, True]
    assert circuit.phase is CircuitPhase.OPEN
    assert circuit.state.trips == 1


def test_while_it_is_open_nothing_passes_until_one_probe_may() -> None:
    circuit = opened(at=5000)
    assert circuit.decide(5999) is CircuitDecision.SPOOL
    assert [circuit.decide(6000), circuit.decide(6000), circuit.decide(9000)] == [
        CircuitDecision.PROBE,
        CircuitDecision.SPOOL,
        CircuitDecision.SPOOL,
    ]


def test_a_probe_that_succeeds_closes_it() -> None:
    circuit = opened()
    assert circuit.decide(1000) is CircuitDecision.PROBE
    assert circuit.record_success(1001)
    assert circuit.decide(1001) is CircuitDecision.DISPATCH
    assert circuit.state.consecutive_failures == 0


def test_a_probe_that_fails_opens_it_again_with_a_fresh_timer() -> None:
    circuit = opened()
    assert circuit.decide(1000) is CircuitDecision.PROBE
    assert circuit.record_failure(1500)
    assert circuit.state.trips == 2
    assert circuit.decide(2499) is CircuitDecision.SPOOL
    assert circuit.decide(2500) is CircuitDecision.PROBE


def test_a_clock_that_was_set_back_does_not_keep_it_open_for_ever() -> None:
    circuit = opened(at=1_000_000)
    assert circuit.decide(5000) is CircuitDecision.SPOOL
    assert circuit.decide(6000) is CircuitDecision.PROBE


@given(
    st.lists(st.tuples(st.sampled_from(["ok", "fail", "ask"]), st.integers(0, 2000)), max_size=60), st.integers(1, 5)
)
def test_whatever_happens_at_most_one_probe_is_outstanding(steps: list[tuple[str, int]], trip_after: int) -> None:
    circuit = Circuit(trip_after=trip_after, probe_after_ms=1000)
    now, probing = 0, False
    for step, wait in steps:
        now += wait
        if step == "ask":
            decision = circuit.decide(now)
            assert not (probing and decision is not CircuitDecision.SPOOL)
            probing = probing or decision is CircuitDecision.PROBE
        else:
            getattr(circuit, "record_success" if step == "ok" else "record_failure")(now)
            probing = False
        assert (circuit.phase is CircuitPhase.HALF_OPEN) == probing


def test_a_target_is_routed_to_the_downstream_of_its_name_else_default_else_the_first() -> None:
    named = Circuits(["warehouse", "billing"], trip_after=1, probe_after_ms=1)
    assert [named.route("warehouse"), named.route("other"), named.route(None)] == ["warehouse", "billing", "billing"]
    assert Circuits(["a", "default"], trip_after=1, probe_after_ms=1).route("other") == "default"
    assert Circuits([], trip_after=1, probe_after_ms=1).route("anything") == "default"


def test_each_transition_is_reported_once() -> None:
    emitted: list[CircuitTransition] = []
    circuits = Circuits(["db"], trip_after=2, probe_after_ms=10, changed=emitted.append)
    for succeeded in (False, False, False, True, True):
        circuits.record("db", succeeded=succeeded, now_ms=1)
    assert emitted == [
        CircuitTransition("db", CircuitPhase.OPEN, 2, 1),
        CircuitTransition("db", CircuitPhase.CLOSED, 0, 1),
    ]


def test_a_restart_continues_where_it_was_and_a_lost_probe_may_be_tried_again() -> None:
    circuits = Circuits(["db", "gone"], trip_after=1, probe_after_ms=1000)
    circuits.record("db", succeeded=False, now_ms=100)
    assert circuits.decide("db", 1100) is CircuitDecision.PROBE
    again = Circuits(["db", "new"], trip_after=1, probe_after_ms=1000)
    again.restore(circuits.snapshot(), now_ms=1200)
    assert again["db"].phase is CircuitPhase.OPEN
    assert again["db"].state.trips == 1
    assert again.decide("db", 1200) is CircuitDecision.PROBE
    assert again.decide("new", 1200) is CircuitDecision.DISPATCH
    assert not again.are_closed
