"""What failed runs did is undone: in order, once, as often as it takes, and nothing else is."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

import tape
from tape.client import TapeClient
from tape.connectors import CompensationResult, LocalConnector, register
from tape.effect import register_compensator, register_status_check
from tape.errors import IllegalTransition
from tape.proto import tape_pb2 as pb
from tape.reactors import (
    compensate_once,
    compensate_one,
    compensate_run,
    outbox_dispatch_once,
    run_compensations_event_driven,
)
from tape.reactors.compensator import PAUSES
from tests.reactors.scene import IDEMPOTENT, begin, effect_of, fail, outcomes, owe, send, status_of
from tests.services import wait_for


@pytest.fixture
def undone() -> list[str]:
    """What was undone, in order; compensators `a` to `d` are there."""
    done: list[str] = []
    for name in "abcd":
        register_compensator(name, lambda payload: done.append(payload["kind"]))
    return done


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow one another within milliseconds."""
    monkeypatch.setattr("tape.reactors.compensator.PAUSES.__class__.delay", lambda self, attempt: 0.001)


def test_what_a_failed_run_did_is_undone_newest_first(client: TapeClient, undone: list[str]) -> None:
    failed, healthy = begin(client), begin(client)
    owe(client, failed, "a", "b", "c")
    owe(client, healthy, "d")
    fail(client, failed)
    assert outcomes(compensate_once(client=client)) == ["compensated"] * 3
    assert undone == ["c", "b", "a"]
    assert (status_of(client, failed), status_of(client, healthy)) == ("FAILED", "RUNNING")
    assert compensate_once(client=client) == []


def test_a_cancelled_run_is_cancelled_again_when_all_is_undone(client: TapeClient, undone: list[str], url: str) -> None:
    run_id = begin(client)
    owe(client, run_id, "a")
    tape.cancel_run(run_id, url=url)
    seen: list[str] = []
    register_compensator("a", lambda: seen.append(status_of(client, run_id)))
    compensate_once(client=client)
    assert (seen, status_of(client, run_id)) == (["COMPENSATING"], "CANCELLED")


def test_one_owed_obligation_is_found_beside_thousands_that_are_not(client: TapeClient, undone: list[str]) -> None:
    healthy, failed = begin(client), begin(client)
    threads = [
        threading.Thread(target=lambda part=part: [owe(client, healthy, "a", key=f"{part}-{n}") for n in range(250)])
        for part in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    owe(client, failed, "b")
    fail(client, failed)
    assert outcomes(compensate_once(client=client, limit=10)) == ["compensated"]
    assert undone == ["b"]
    assert len(client.list_obligations(run_id=healthy).obligations) == 2_000


def test_attempts_come_to_an_end_and_the_run_is_stuck(client: TapeClient, undone: list[str]) -> None:
    def refuse() -> None:
        raise OSError("the bank is closed")

    register_compensator("b", refuse)
    run_id = begin(client)
    owe(client, run_id, "a", "b")
    fail(client, run_id)
    seen: list[str] = []
    while "stuck" not in seen:
        seen += outcomes(compensate_once(client=client))
    assert seen == ["retry"] * 4 + ["stuck"]
    assert (undone, status_of(client, run_id)) == ([], "STUCK")
    assert compensate_once(client=client) == []
    (stuck,) = client.list_obligations(run_id=run_id, status_filter=pb.OBLIGATION_STATUS_STUCK).obligations
    assert (stuck.attempts, json.loads(stuck.last_error)["message"]) == (5, "the bank is closed")
    # It was compensated by hand: the rest follows, and the run gets its former status.
    client.resolve_obligation(run_id=run_id, obligation_seq=stuck.seq, status=3, settle_run=True)
    assert outcomes(compensate_once(client=client)) == ["compensated"]
    assert (undone, status_of(client, run_id)) == (["a"], "FAILED")


def test_a_compensator_that_another_process_has_costs_no_attempt(client: TapeClient, undone: list[str]) -> None:
    unregistered, here = [begin(client) for _ in range(30)], begin(client)
    for run_id in unregistered:
        owe(client, run_id, "a", "x")
        fail(client, run_id)
    owe(client, here, "b")
    fail(client, here)
    reports = compensate_once(client=client, limit=40)
    assert sorted(outcomes(reports)) == ["compensated"] + ["unregistered"] * 30
    assert "no compensator 'x' in this process" in reports[0]["reason"]
    assert undone == ["b"]
    assert {each.attempts for each in client.list_obligations(run_id=unregistered[0]).obligations} == {0}
    # Also when they fill the first page, ours is found.
    late = begin(client)
    owe(client, late, "c")
    fail(client, late)
    assert "compensated" in outcomes(compensate_once(client=client, limit=31))


def test_two_reactors_undo_everything_once(client: TapeClient, url: str) -> None:
    done: list[tuple[str, int]] = []
    for number in range(3):
        register_compensator(f"k{number}", lambda run_id, n=number: done.append((run_id, n)))
    failed = [begin(client) for _ in range(10)]
    for run_id in failed:
        owe(client, run_id, "k0", "k1", "k2")
        fail(client, run_id)
    start = threading.Barrier(3)

    def undo() -> None:
        start.wait()
        while compensate_once(url):
            pass

    threads = [threading.Thread(target=undo) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 30
    for run_id in failed:
        assert [n for run, n in done if run == run_id] == [2, 1, 0]
        assert status_of(client, run_id) == "FAILED"


# ── what there is to undo ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("status", "check", "outcome", "after"),
    [
        (pb.EFFECT_STATUS_CONFIRMED, None, "compensated", 2),
        (pb.EFFECT_STATUS_FAILED, None, "skipped", 3),
        (pb.EFFECT_STATUS_UNKNOWN, None, "compensated", 4),
        (pb.EFFECT_STATUS_UNKNOWN, lambda: False, "skipped", 3),
        (pb.EFFECT_STATUS_UNKNOWN, lambda: True, "compensated", 2),
        (pb.EFFECT_STATUS_UNKNOWN, lambda: None, "compensated", 4),
        (pb.EFFECT_STATUS_UNKNOWN, lambda: 1 / 0, "retry", 4),
        (0, lambda: False, "skipped", 3),
        (0, None, "compensated", 1),
    ],
)
def test_what_did_not_happen_is_not_undone(
    client: TapeClient, undone: list[str], status: int, check: Any, outcome: str, after: int
) -> None:
    if check is not None:
        register_status_check("pay", check)
    run_id = begin(client)
    key = client.begin_effect(run_id=run_id, decision_index=0, tool_name="pay").idempotency_key
    owe(client, run_id, "a", key=key, kind="a")
    if status:
        client.complete_effect(run_id=run_id, idempotency_key=key, status=status)
    fail(client, run_id)
    assert outcomes(compensate_once(client=client)) == [outcome]
    assert (undone, effect_of(client, run_id, key).status) == (["a"] if outcome == "compensated" else [], after)


def test_a_compensator_gets_what_a_status_check_has_found(client: TapeClient) -> None:
    given: list[Any] = []
    register_compensator("refund", lambda result: given.append(result))
    register_status_check("pay", lambda: {"ref": "tx-9"})
    run_id = begin(client)
    key = client.begin_effect(run_id=run_id, decision_index=0, tool_name="pay").idempotency_key
    owe(client, run_id, "refund", key=key)
    client.complete_effect(run_id=run_id, idempotency_key=key, status=pb.EFFECT_STATUS_UNKNOWN)
    fail(client, run_id)
    assert outcomes(compensate_once(client=client)) == ["compensated"]
    assert given == [{"ref": "tx-9"}]


@pytest.mark.parametrize("answer", [object(), float("nan"), "y" * 2_000_000], ids=["an object", "nan", "too large"])
def test_what_is_undone_is_on_record_whatever_was_answered(client: TapeClient, answer: Any) -> None:
    register_compensator("good", lambda: {"x": answer})
    register_compensator("bad", lambda: CompensationResult("failed", error={"x": answer}))
    run_id = begin(client)
    owe(client, run_id, "bad", "good")
    fail(client, run_id)
    assert outcomes(compensate_once(client=client)) == ["compensated", "retry"]


def test_what_still_waits_in_the_outbox_is_withdrawn(client: TapeClient, undone: list[str]) -> None:
    sent: list[int] = []
    register(LocalConnector("bank", lambda: sent.append(1)))
    run_id = begin(client)
    key = send(client, run_id)
    owe(client, run_id, "a", key=key)
    fail(client, run_id)
    (report,) = compensate_once(client=client)
    assert (report["outcome"], report["reason"]) == ("skipped", "the effect was never sent")
    assert outbox_dispatch_once(client=client) == []
    assert (sent, undone, effect_of(client, run_id, key).status) == ([], [], pb.EFFECT_STATUS_FAILED)


def test_what_is_just_being_sent_is_waited_for(client: TapeClient, undone: list[str]) -> None:
    run_id = begin(client)
    key = send(client, run_id, IDEMPOTENT)
    owe(client, run_id, "a", key=key, kind="a")
    key_of = {"run_id": run_id, "idempotency_key": key}
    client.claim_effect_dispatch(**key_of, claimer="dispatcher")
    fail(client, run_id)
    assert outcomes(compensate_once(client=client)) == ["waiting"]
    client.record_external_observation(**key_of, resolution=1)
    assert compensate_run(run_id, client=client)["compensated"] == 1
    assert undone == ["a"]
    assert client.list_obligations(run_id=run_id, only_unresolved=False).obligations[0].attempts == 0


def test_an_effect_of_a_dead_dispatcher_is_neither_sent_again_nor_left_open(
    client: TapeClient, undone: list[str]
) -> None:
    run_id = begin(client)
    key = send(client, run_id, IDEMPOTENT)
    owe(client, run_id, "a", key=key, kind="a")
    client.claim_effect_dispatch(run_id=run_id, idempotency_key=key, claimer="vanished", lease_ttl_ms=1)
    wait_for(lambda: client.list_effects_to_dispatch().effects, "the claim to run out")
    fail(client, run_id)
    assert outcomes(compensate_once(client=client)) == ["compensated"]
    assert (undone, effect_of(client, run_id, key).status) == (["a"], pb.EFFECT_STATUS_UNKNOWN)


def test_a_compensator_gets_what_it_names(client: TapeClient, url: str) -> None:
    given: list[dict[str, Any]] = []

    async def refund(amount: int, result: Any, idempotency_key: str, run_id: str, payload: Any, **rest: Any) -> Any:
        given.append({"amount": amount, "result": result, "payload": payload, "run": run_id, "key": idempotency_key})
        assert rest["effect"].tool_name == "charge"
        return {"refunded": amount}

    @tape.effect(compensate=refund)
    def charge(amount: int, currency: str = "EUR") -> dict[str, str]:
        return {"id": "ch-1"}

    run = tape.durable_run("shop", url=url)

    def sell() -> None:
        with run:
            charge(5)
            raise ValueError("no stock")

    with pytest.raises(ValueError, match="no stock"):
        sell()
    assert outcomes(compensate_once(client=client)) == ["compensated"]
    (done,) = client.list_obligations(run_id=run.run_id, only_unresolved=False).obligations
    assert json.loads(done.result_json) == {"refunded": 5}
    assert given == [
        {
            "amount": 5,
            "result": {"id": "ch-1"},
            "payload": {"amount": 5, "currency": "EUR"},
            "run": run.run_id,
            "key": done.effect_key,
        }
    ]


def test_a_connector_undoes_what_has_no_compensator_of_its_own(client: TapeClient) -> None:
    register(
        LocalConnector("bank", lambda: None, undo=lambda amount: CompensationResult("compensated", {"was": amount}))
    )
    run_id = begin(client)
    key = send(client, run_id)
    outbox_dispatch_once(client=client)
    owe(client, run_id, "whatever", key=key, amount=7)
    fail(client, run_id)
    assert outcomes(compensate_once(client=client)) == ["compensated"]
    (done,) = client.list_obligations(run_id=run_id, only_unresolved=False).obligations
    assert done.result_json == '{"was":7}'


# ── one run, and as it happens ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("has_failed", [True, False])
def test_one_run_is_undone_on_demand(client: TapeClient, undone: list[str], has_failed: bool) -> None:
    failing = iter([OSError("not yet"), OSError("not yet"), None])

    def hesitate() -> None:
        if (error := next(failing)) is not None:
            raise error
        undone.append("b")

    register_compensator("b", hesitate)
    run_id = begin(client)
    owe(client, run_id, "a", "b", "c")
    if has_failed:
        fail(client, run_id)
    summary = compensate_run(run_id, client=client)
    assert undone == ["c", "b", "a"]
    assert (summary["status"], summary["compensated"], summary["open"], summary["stuck"]) == ("FAILED", 3, 0, 0)
    assert outcomes(summary["steps"]) == ["compensated", "retry", "retry", "compensated", "compensated"]


def test_what_a_run_that_succeeded_did_is_not_undone(client: TapeClient, undone: list[str]) -> None:
    run_id = begin(client)
    owe(client, run_id, "a")
    client.end_run(run_id=run_id)
    with pytest.raises(IllegalTransition, match="it succeeded"):
        compensate_run(run_id, client=client)
    assert undone == []


def test_an_obligation_of_a_healthy_run_is_not_undone_by_hand_either(client: TapeClient, undone: list[str]) -> None:
    run_id = begin(client)
    owe(client, run_id, "a")
    (obligation,) = client.list_obligations(run_id=run_id).obligations
    assert compensate_one(obligation, client=client)["outcome"] == "held"
    assert undone == []


@pytest.mark.parametrize("catchup", [True, False])
def test_what_becomes_owed_is_undone_as_it_happens(
    client: TapeClient, url: str, undone: list[str], catchup: bool
) -> None:
    before = begin(client)
    owe(client, before, "d")
    fail(client, before)
    stop, events = threading.Event(), []
    reactor = threading.Thread(
        target=run_compensations_event_driven,
        args=(url,),
        kwargs={"catchup": catchup, "idle_window_s": 600, "on_event": events.append, "stop": stop},
    )
    reactor.start()

    def another_fails() -> bool:
        run_id = begin(client)
        owe(client, run_id, "a", "b")
        fail(client, run_id)
        return {"a", "b"} <= set(undone)

    wait_for(another_fails, "the reactor to hear of a run that failed")
    stop.set()
    reactor.join(120)
    assert not reactor.is_alive()
    assert ("d" in undone) == catchup
    assert set(outcomes(events)) == {"compensated"}


def test_pauses_grow_and_are_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    pauses = [PAUSES.delay(attempt) for attempt in range(1, 8)]
    for pause, middle in zip(pauses, [1, 2, 4, 8, 16, 32, 60], strict=True):
        assert middle * 0.79 <= pause <= middle * 1.21
