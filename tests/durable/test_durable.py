"""Runs without a framework: decisions, gates, budgets, samples, leases and how a run ends."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

import tape
from tape import Budget, TapeClient, durable_run, effect, gate, gate_tool, heartbeat, is_cancelled, policy_is
from tape.durable import determinism
from tape.durable.runs import DurableRun, adopted_owner, continue_run
from tape.errors import (
    BudgetExceeded,
    InvalidInput,
    LeaseHeld,
    NotInRun,
    RunEnded,
    RunParked,
    ServerUnreachable,
)
from tape.gates import gate_async
from tape.proto import tape_pb2 as pb
from tests.durable.test_effect import drive_that_dies, run_of
from tests.services import ServerProcess, wait_for

# ── how a run ends ───────────────────────────────────────────────────────────────────────────────


def test_a_run_that_comes_to_its_end_is_terminal_and_says_so_when_begun_again(url: str, observer: TapeClient) -> None:
    with run_of(url) as run:
        assert not run.resumed
    assert observer.get_run(run.run_id).status == pb.RUN_STATUS_TERMINAL
    with run_of(url) as again:
        assert again.is_finished


def test_a_stuck_run_is_not_begun_again(url: str, observer: TapeClient) -> None:
    with drive_that_dies(url) as run:
        pass
    observer.end_run(run_id=run.run_id, status=pb.RUN_STATUS_STUCK)
    with pytest.raises(RunEnded, match="STUCK"), run_of(url):
        raise AssertionError("it must not come to this")


def test_an_exception_fails_the_run_and_is_on_record(url: str, observer: TapeClient) -> None:
    with pytest.raises(ZeroDivisionError), run_of(url) as run:
        _ = 1 / 0
    assert observer.get_run(run.run_id).status == pb.RUN_STATUS_FAILED


def test_a_process_that_is_stopped_leaves_the_run_open_for_recovery(url: str, observer: TapeClient) -> None:
    with drive_that_dies(url) as run:
        pass
    assert observer.get_run(run.run_id).status == pb.RUN_STATUS_RUNNING
    wait_for(lambda: observer.list_runs_to_recover().runs, "the lease to run out")


def test_a_run_is_continued_from_its_state(url: str, observer: TapeClient) -> None:
    with drive_that_dies(url) as run:
        pass
    with continue_run(observer.get_run(run.run_id), url=url) as again:
        assert again.run_id == run.run_id
        assert again.resumed


def test_without_an_invocation_id_each_run_is_a_new_one(url: str) -> None:
    with durable_run("app", url=url) as one, durable_run("app", url=url) as other:
        assert one.run_id != other.run_id


# ── leases ───────────────────────────────────────────────────────────────────────────────────────


def test_two_processes_cannot_carry_on_the_same_run(url: str) -> None:
    with run_of(url), pytest.raises(LeaseHeld), run_of(url):
        raise AssertionError("it must not come to this")


def test_the_lease_is_renewed_for_as_long_as_the_run_takes(url: str, observer: TapeClient) -> None:
    with run_of(url, lease_ttl_ms=10_000) as run:
        first = observer.get_run(run.run_id).lease_expires_at_ms
        wait_for(lambda: observer.get_run(run.run_id).lease_expires_at_ms > first, "a renewal")
        assert not observer.list_runs_to_recover().runs


def test_a_tool_can_renew_the_lease_itself(url: str, observer: TapeClient) -> None:
    with run_of(url) as run:
        heartbeat(run, lease_ttl_ms=3_600_000)
        assert observer.get_run(run.run_id).lease_expires_at_ms > time.time() * 1000 + 3_000_000


def test_a_recovered_run_adopts_the_lease_of_recovery(url: str, observer: TapeClient) -> None:
    with drive_that_dies(url) as run:
        pass
    observer.resume_run(run_id=run.run_id, lease_owner="recoverer")
    token = adopted_owner.set("recoverer")
    try:
        with run_of(url, lease_owner="me"):
            assert observer.get_run(run.run_id).lease_owner == "recoverer"
    finally:
        adopted_owner.reset(token)


# ── decisions ────────────────────────────────────────────────────────────────────────────────────


def test_a_decision_is_made_once_also_if_it_is_none(url: str, observer: TapeClient) -> None:
    made: list[str] = []

    def choose(what: Any) -> Any:
        made.append(str(what))
        return what

    for _ in range(2):
        with drive_that_dies(url) as run:
            assert run.decide(lambda: choose({"amount": 5}), model="m-1", rationale="idle cash") == {"amount": 5}
            assert run.decide(lambda: choose(None)) is None
    assert made == ["{'amount': 5}", "None"]
    decision = observer.get_decision(run_id=run.run_id, decision_index=0).decision
    assert (decision.model, decision.rationale) == ("m-1", "idle cash")


async def test_a_model_may_be_asked_asynchronously(url: str) -> None:
    async def ask() -> str:
        return "yes"

    async with run_of(url) as run:
        assert await run.decide_async(ask) == "yes"


def test_an_effect_belongs_to_the_decision_before_it_and_knows_its_policy(url: str) -> None:
    @effect
    def act(tool_context: Any = None) -> list[Any]:
        return [tape.idempotency_key(tool_context), policy_is(tool_context, "v1"), policy_is(tool_context, "v2")]

    with run_of(url) as run:
        run.decide(lambda: 1, policy_version="v1")
        run.decide(lambda: 2, policy_version="v2")
        assert act() == [f"{run.run_id}/decision-1/act/0", False, True]


# ── gates ────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_parks_at_a_gate_and_goes_on_with_the_answer(url: str, observer: TapeClient) -> None:
    def agent() -> Any:
        with run_of(url, lease_ttl_ms=300):
            return gate("approval", payload={"amount": 5})

    with pytest.raises(RunParked, match=r"tape inbox answer \S+ approval --approve"):
        agent()
    [run] = observer.list_runs(app_name="app").runs
    assert (run.status, run.waiting_on_gate, run.lease_owner) == (pb.RUN_STATUS_WAITING, "approval", "")
    tape.send_signal("approval", run_id=run.run_id, resolution={"approved": True}, url=url)
    assert agent() == {"approved": True}
    assert observer.get_run(run.run_id).status == pb.RUN_STATUS_TERMINAL


def test_a_gate_within_an_effect_leaves_the_effect_to_be_entered_again(url: str) -> None:
    entered = []

    @effect
    def pay(tool_context: Any = None) -> str:
        entered.append(1)
        return str(gate("approval", tool_context=tool_context)["by"])

    with pytest.raises(RunParked), run_of(url) as run:
        pay()
    tape.send_signal("approval", run_id=run.run_id, resolution={"by": "ann"}, url=url)
    with run_of(url):
        assert pay() == "ann"
    assert len(entered) == 2


def test_a_gate_times_out_with_its_value_and_the_run_goes_on(url: str, observer: TapeClient) -> None:
    def agent() -> Any:
        with run_of(url):
            return gate("approval", timeout=0.2, on_timeout={"approved": "by default"})

    with pytest.raises(RunParked) as parked:
        agent()
    assert "tape inbox answer" in str(parked.value)
    wait_for(lambda: observer.list_runs_to_recover().runs, "the server to release the run")
    assert agent() == {"approved": "by default"}


@pytest.mark.parametrize(
    ("on_timeout", "answer"), [("reject", {"approved": False, "timed_out": True}), (7, {"value": 7})]
)
def test_the_answer_of_a_time_out_is_what_on_timeout_says(
    url: str, observer: TapeClient, on_timeout: Any, answer: Any
) -> None:
    def agent() -> Any:
        with run_of(url):
            return gate_tool("approval", timeout="100ms", on_timeout=on_timeout)()

    with pytest.raises(RunParked):
        agent()
    wait_for(lambda: observer.list_runs_to_recover().runs, "the server to release the run")
    assert agent() == answer


def test_terms_of_a_gate_are_checked_before_the_run_parks(url: str, observer: TapeClient) -> None:
    for terms in ({"timeout": "soon"}, {"timeout": 0}, {"on_timeout": 1}, {"timeout": "1h", "remind_after": "1h"}):
        with pytest.raises(InvalidInput), run_of(url, str(terms)):
            gate("approval", **terms)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        gate_tool("approval", timeout="2 hours")


async def test_a_coroutine_waits_at_a_gate_and_sleeps(url: str, observer: TapeClient) -> None:
    async def agent() -> Any:
        async with run_of(url) as run:
            answer = await gate_async("approval", payload={"n": 1})
            await run.sleep_async(0.05)
            return answer

    with pytest.raises(RunParked):
        await agent()
    [run] = observer.list_runs(app_name="app").runs
    observer.send_signal(run_id=run.run_id, gate_name="approval", resolution_json="[1]")
    with pytest.raises(RunParked, match="sleeps until"):
        await agent()
    wait_for(lambda: observer.list_runs_to_recover().runs, "the run to wake")
    assert await agent() == {"value": [1]}


def test_a_run_sleeps_once_for_each_call_and_recovery_resumes_it(url: str, observer: TapeClient) -> None:
    slept: list[int] = []

    def agent(run: DurableRun) -> None:
        for number in range(2):
            run.sleep(0.05)
            slept.append(number)

    with pytest.raises(RunParked), run_of(url) as run:
        agent(run)

    def redrive(state: pb.RunState) -> None:
        with tape.continue_run(state, url=url) as run:
            agent(run)

    def has_ended() -> bool:
        tape.recover_once(redrive_fn=redrive, url=url)
        return observer.get_run(run.run_id).status == pb.RUN_STATUS_TERMINAL

    wait_for(has_ended, "the run to end")
    assert slept == [0, 0, 1]


def test_no_renewal_wakes_a_run_that_has_parked(url: str, observer: TapeClient) -> None:
    """The lease is renewed every tenth of a second here; the run stays parked all the same."""
    with pytest.raises(RunParked), run_of(url, lease_ttl_ms=1) as run:
        gate("approval")
    done = threading.Event()
    threading.Timer(0.3, done.set).start()
    wait_for(done.is_set, "renewals to come, if there were any")
    assert observer.get_run(run.run_id).status == pb.RUN_STATUS_WAITING


def test_a_gate_tool_asks_with_its_reason_and_returns_the_answer_as_a_dict(url: str) -> None:
    ask = gate_tool("approve_transfer", risk="money")
    assert ask.__name__ == "approve_transfer"
    with pytest.raises(RunParked), run_of(url) as run:
        ask(reason="idle cash")
    tape.send_signal("approve_transfer", run_id=run.run_id, resolution="go", url=url)
    with run_of(url):
        assert ask(reason="idle cash") == {"value": "go"}


# ── budgets ──────────────────────────────────────────────────────────────────────────────────────


def test_a_budget_stops_the_run_before_it_spends_too_much(url: str, observer: TapeClient) -> None:
    spent = 0

    def agent() -> None:
        nonlocal spent
        with run_of(url, budget=Budget(usd_cap=1.0)) as run:
            for _ in range(10):
                run.admit(usd=0.3)
                run.charge(usd=0.3, tokens=100)
                spent += 1

    with pytest.raises(BudgetExceeded, match="usd cap"):
        agent()
    assert spent == 3
    assert observer.list_runs(status=pb.RUN_STATUS_FAILED).runs


def test_a_budget_is_refused_when_it_makes_no_sense() -> None:
    with pytest.raises(InvalidInput, match="usd_cap -1"):
        Budget(usd_cap=-1)
    assert Budget(usd_per_million_tokens=2.0).usd_of(500_000) == 1.0


# ── samples ──────────────────────────────────────────────────────────────────────────────────────


def test_what_differs_each_time_is_the_same_in_every_drive(url: str) -> None:
    def agent(run: tape.DurableRun) -> list[Any]:
        return [
            determinism.now(run),
            determinism.now(run),
            determinism.random(run),
            determinism.uuid(run),
            determinism.sample(run, lambda n: {"n": n, "at": time.time_ns()}, 3, name="quote"),
        ]

    drives = []
    for _ in range(2):
        with drive_that_dies(url) as run:
            drives.append(agent(run))
    assert drives[0] == drives[1]
    assert drives[0][0] < drives[0][1]


def test_samples_within_an_effect_belong_to_it(url: str) -> None:
    @effect
    def stamp(tool_context: Any = None) -> float:
        return determinism.now(tool_context)

    def agent(run: tape.DurableRun) -> list[float]:
        return [stamp(), determinism.now(run)]

    drives = []
    for _ in range(2):
        with drive_that_dies(url) as run:
            drives.append(agent(run))
    assert drives[0] == drives[1]


def test_a_sample_outside_of_a_run_is_refused() -> None:
    with pytest.raises(NotInRun):
        determinism.now(None)


def test_an_unknown_setting_of_a_sample_is_named(url: str) -> None:
    with pytest.raises(InvalidInput, match="'seed'"), run_of(url) as run:
        determinism.random(run, seed=1)


# ── one call each ────────────────────────────────────────────────────────────────────────────────


def test_values_signals_timers_and_cancelling_by_one_call_each(url: str, observer: TapeClient) -> None:
    assert tape.set_value("fx", "EUR", {"rate": 1.1}, writer="me", url=url).version == 1
    assert tape.get_value("fx", "EUR", url=url).value.value_json == '{"rate":1.1}'
    assert tape.set_value("fx", "EUR", None, if_version=1, url=url).version == 2
    assert next(iter(tape.watch_value("fx", "EUR", from_version=1, url=url))).value.value_json == "null"
    assert tape.delete_value("fx", "EUR", url=url).deleted
    with drive_that_dies(url) as run:
        timer = tape.set_timer(run_id=run.run_id, fire_at_ms=1, kind="wake", payload={"n": 1}, url=url)
        assert [each.timer_id for each in observer.list_due_timers().timers] == [timer.timer_id]
        assert tape.cancel_timer(run_id=run.run_id, timer_id=timer.timer_id, url=url).cancelled
        assert not is_cancelled(run)
        tape.cancel_run(run.run_id, url=url)
        assert is_cancelled(run)


# ── a server that goes away ──────────────────────────────────────────────────────────────────────


def test_a_run_outlives_a_restart_of_the_server(sqlite_url: str) -> None:
    calls = []

    @effect
    def act(n: int) -> int:
        calls.append(n)
        return n

    with ServerProcess(sqlite_url) as server, run_of(server.url) as run:
        assert act(1) == 1
        address = server.url.removeprefix("tape://")
        server.kill()
        restart = threading.Thread(target=server.start, args=(address,))
        restart.start()
        assert act(2) == 2
        restart.join()
        assert run.decide(lambda: "go") == "go"
    assert calls == [1, 2]


def test_a_run_whose_server_is_gone_says_so(monkeypatch: pytest.MonkeyPatch, sqlite_url: str) -> None:
    monkeypatch.setattr("tape.durable.server_retry.DEADLINE_S", 0.2)
    with pytest.raises(ServerUnreachable, match="tape serve"), run_of("tape://127.0.0.1:1"):
        raise AssertionError("it must not come to this")
