"""Replay as a test: today's code against recorded runs; nothing is performed, nothing is written."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

import tape
from tape import TapeClient, durable_run, effect
from tape.durable import determinism
from tape.errors import InvalidInput, ReplayDiverged, RunParked
from tape.proto import tape_pb2 as pb

ACTS: list[str] = []


@effect
def look_up(customer: str) -> dict[str, str]:
    ACTS.append(f"look up {customer}")
    return {"address": "here"}


@effect
def order(customer: str, cents: int = 100) -> str:
    ACTS.append(f"order {customer}")
    return look_up(customer)["address"]


@effect
def refuse(customer: str) -> None:
    ACTS.append("refuse")
    raise ValueError("no stock")


@pytest.fixture(autouse=True)
def no_acts() -> None:
    ACTS.clear()


Plan = Callable[[tape.DurableRun], Any]


def plan(run: tape.DurableRun) -> None:
    customer = run.decide(lambda: "ann", request={"ask": "who"})
    determinism.now(run)
    order(customer)
    with contextlib.suppress(tape.EffectFailed):
        refuse(customer)


def drive(url: str, plan: Plan, invocation: str = "i-1") -> str:
    with durable_run("shop", invocation_id=invocation, url=url, lease_ttl_ms=1) as run:
        plan(run)
    return run.run_id


def agent_of(plan: Plan) -> Callable[[pb.RunState], None]:
    def agent(run: pb.RunState) -> None:
        with tape.continue_run(run, url="tape://127.0.0.1:1") as again:
            plan(again)

    return agent


def test_the_same_code_replays_and_nothing_is_performed_or_written(url: str, observer: TapeClient) -> None:
    run_id = drive(url, plan)
    acts, head = list(ACTS), observer.head().global_seq
    result = tape.replay(run_id, agent_of(plan), client=observer).check()
    assert (result.outcome, result.replayed, result.steps) == ("same", 4, 5), "what an effect contains is not repeated"
    assert acts == ACTS
    assert observer.head().global_seq == head


def test_code_with_a_durable_run_of_its_own_replays_unchanged(url: str, observer: TapeClient) -> None:
    run_id = drive(url, plan)
    assert tape.replay(run_id, lambda: drive("tape://127.0.0.1:1", plan), client=observer).outcome == "same"


async def _async_plan(run: tape.DurableRun) -> None:
    async def make() -> str:
        return "ann"

    await run.decide_async(make)
    order("ann")


def test_a_coroutine_replays(url: str, observer: TapeClient) -> None:
    async def agent(run: Any) -> None:
        async with durable_run("shop", invocation_id="i-1", url=url) as again:
            await _async_plan(again)

    asyncio.run(agent(None))
    (run,) = observer.list_runs(app_name="shop").runs
    assert tape.replay(run.run_id, agent, client=observer).outcome == "same"
    assert ACTS == ["order ann", "look up ann"]


def other_arguments(run: tape.DurableRun) -> None:
    order(run.decide(lambda: "ann", request={"ask": "who"}), 200)


def other_request(run: tape.DurableRun) -> None:
    run.decide(lambda: "ann", request={"ask": "whom"})


def other_tool(run: tape.DurableRun) -> None:
    look_up(run.decide(lambda: "ann", request={"ask": "who"}))


def fewer(run: tape.DurableRun) -> None:
    order(run.decide(lambda: "ann", request={"ask": "who"}))


def more(run: tape.DurableRun) -> None:
    plan(run)
    order("bob")


def further_decision(run: tape.DurableRun) -> None:
    plan(run)
    run.decide(lambda: ACTS.append("asked"))


def raises(run: tape.DurableRun) -> None:
    plan(run)
    raise LookupError("new")


def swallows(run: tape.DurableRun) -> None:
    with contextlib.suppress(BaseException):
        other_tool(run)


def asks_for_a_value(run: tape.DurableRun) -> None:
    tape.get_value("n", "k")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (other_arguments, "cents: recorded 100, now 200"),
        (other_request, 'ask: recorded "who", now "whom"'),
        (other_tool, "'look_up'"),
        (fewer, "'refuse'"),
        (more, "TERMINAL"),
        (further_decision, "the decision 1"),
        (raises, '"LookupError"'),
        (swallows, "'look_up'"),
        (asks_for_a_value, "get_value"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_first_divergence_is_reported_and_nothing_is_performed(
    url: str, observer: TapeClient, changed: Plan, message: str
) -> None:
    run_id = drive(url, plan)
    acts, head = list(ACTS), observer.head().global_seq
    result = tape.replay(run_id, agent_of(changed), client=observer)
    assert result.outcome == "diverged"
    with pytest.raises(ReplayDiverged) as found:
        result.check()
    assert message in str(found.value)
    assert result.divergence is not None
    assert result.divergence.file == __file__
    assert result.divergence.line > 0
    assert (ACTS, observer.head().global_seq) == (acts, head)


def test_an_effect_outside_of_the_run_is_not_performed(url: str, observer: TapeClient) -> None:
    run_id = drive(url, plan)
    ACTS.clear()

    def agent(run: pb.RunState) -> None:
        order("outside")
        agent_of(plan)(run)

    result = tape.replay(run_id, agent, client=observer)
    assert result.divergence is not None
    assert "outside of the run" in result.divergence.message
    assert not ACTS


def test_a_run_that_is_not_finished_replays_up_to_the_end_of_its_record(url: str, observer: TapeClient) -> None:
    def gated(run: tape.DurableRun) -> None:
        plan(run)
        assert tape.gate("first")["approved"]
        tape.gate("second")
        order("bob")

    for _ in range(2):
        with pytest.raises(RunParked):
            drive(url, gated)
        (run,) = observer.list_runs(app_name="shop").runs
        if run.waiting_on_gate == "first":
            observer.send_signal(run_id=run.run_id, gate_name="first", resolution_json='{"approved": true}')
    acts = list(ACTS)
    assert tape.replay(run.run_id, agent_of(gated), client=observer).check().outcome == "same"
    assert acts == ACTS


def test_a_failed_run_replays_as_failed(url: str, observer: TapeClient) -> None:
    def fails(run: tape.DurableRun) -> None:
        order("ann")
        raise LookupError("gone")

    with pytest.raises(LookupError):
        drive(url, fails)
    (run,) = observer.list_runs(app_name="shop").runs
    assert tape.replay(run.run_id, agent_of(fails), client=observer).outcome == "same"
    mended = tape.replay(run.run_id, agent_of(lambda run: order("ann")), client=observer)
    assert mended.outcome == "diverged"


def test_another_result_is_a_divergence(url: str, observer: TapeClient) -> None:
    def answers(value: int) -> Plan:
        def plan(run: tape.DurableRun) -> None:
            run.result = {"value": value}

        return plan

    run_id = drive(url, answers(1))
    assert tape.replay(run_id, agent_of(answers(1)), client=observer).check().outcome == "same"
    changed = tape.replay(run_id, agent_of(answers(2)), client=observer).divergence
    assert changed is not None
    assert (changed.recorded, changed.asked) == ('{"value":1}', '{"value":2}')


def test_a_version_under_replay_is_the_one_of_the_run(url: str, observer: TapeClient) -> None:
    def versioned(run: tape.DurableRun) -> None:
        if run.version("careful", 2) >= 2:
            look_up("ann")
        order("ann")

    old = drive(url, lambda run: order("ann"), "old")
    new = drive(url, versioned, "new")
    for run_id in (old, new):
        assert tape.replay(run_id, agent_of(versioned), client=observer).check().outcome == "same"


def test_a_window_of_runs_is_a_regression_test(url: str, observer: TapeClient) -> None:
    for number in range(4):
        drive(url, lambda run, number=number: order("ann", 50 if number == 2 else 100), f"i-{number}")
    results = list(tape.replay_window(agent_of(lambda run: order("ann")), app_name="shop", client=observer))
    assert [result.outcome for result in results] == ["same", "diverged", "same", "same"]
    first = list(tape.replay_window(agent_of(lambda run: order("ann")), limit=1, client=observer))
    assert len(first) == 1
    assert not list(tape.replay_window(agent_of(plan), since_ms=1 << 60, client=observer))


def test_runs_that_cannot_be_replayed_are_skipped_with_the_reason(url: str, observer: TapeClient) -> None:
    run_id = drive(url, plan)
    observer.compact_run(run_id)
    assert "compacted" in tape.replay(run_id, agent_of(plan), client=observer).reason
    with pytest.raises(InvalidInput, match="has not begun the run"):
        tape.replay(drive(url, plan, "i-2"), lambda: None, client=observer)
