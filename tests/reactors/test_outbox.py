"""What the dispatcher makes of each answer, and that two of them send nothing twice."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import pytest

from tape.client import TapeClient
from tape.connectors import DispatchResult, LocalConnector, ObservationResult, register
from tape.effect import register_tool_compensator
from tape.errors import ServerUnreachable
from tape.proto import tape_pb2 as pb
from tape.reactors.outbox import dispatch_one, outbox_dispatch_once, run_outbox_dispatcher
from tests.reactors.scene import IDEMPOTENT, NON_IDEMPOTENT, begin, effect_of, outcomes, send
from tests.services import wait_for

CONFIRMED, FAILED, UNKNOWN, PENDING = 2, 3, 4, 1


def answering(*answers: Any, look: Any = None) -> list[dict[str, Any]]:
    """A bank that gives these answers, the last one for ever; the requests it gets."""
    requests: list[dict[str, Any]] = []
    left = list(answers)

    def pay(request: dict[str, Any]) -> Any:
        requests.append(request)
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    register(LocalConnector("bank", pay, look=look))
    return requests


def test_what_was_sent_is_on_record_with_its_reference(client: TapeClient) -> None:
    requests = answering(DispatchResult("confirmed", "tx-1", {"fee": 2}))
    run_id = begin(client)
    key = send(client, run_id, amount=5)
    (report,) = outbox_dispatch_once(client=client)
    assert (report["outcome"], report["reason"], report["idempotency_key"]) == ("confirmed", "tx-1", key)
    effect = effect_of(client, run_id, key)
    assert (effect.status, effect.external_ref, effect.response_json) == (CONFIRMED, "tx-1", '{"fee":2}')
    assert requests == [{"amount": 5}]
    assert outbox_dispatch_once(client=client) == []


@pytest.mark.parametrize(
    ("semantics", "answer", "outcome", "status"),
    [
        (IDEMPOTENT, DispatchResult("failed", error={"why": "no"}), "failed", FAILED),
        (NON_IDEMPOTENT, DispatchResult("failed", error={"why": "no"}), "failed", FAILED),
        (IDEMPOTENT, DispatchResult("failed", retry_at_ms=1), "retry", PENDING),
        (NON_IDEMPOTENT, DispatchResult("failed", retry_at_ms=1), "retry", PENDING),
        (IDEMPOTENT, DispatchResult("unknown"), "retry", PENDING),
        (NON_IDEMPOTENT, DispatchResult("unknown", retry_at_ms=1), "unknown", UNKNOWN),
        (NON_IDEMPOTENT, OSError("the line is dead"), "unknown", UNKNOWN),
    ],
)
def test_an_answer_decides_what_becomes_of_an_effect(
    client: TapeClient, semantics: int, answer: Any, outcome: str, status: int
) -> None:
    answering(answer)
    run_id = begin(client)
    key = send(client, run_id, semantics)
    assert outcomes(outbox_dispatch_once(client=client)) == [outcome]
    assert effect_of(client, run_id, key).status == status


@pytest.mark.parametrize(
    "response",
    [{"x": object()}, {"x": float("nan")}, {"x": "y" * 2_000_000}, {"x": "a NUL \0"}],
    ids=["an object", "not a number", "too large", "a NUL"],
)
def test_what_was_sent_is_on_record_whatever_was_answered(client: TapeClient, response: dict[str, Any]) -> None:
    requests = answering(DispatchResult("confirmed", "tx-1\0", response))
    run_id = begin(client)
    key = send(client, run_id)
    assert outcomes(outbox_dispatch_once(client=client)) == ["confirmed"]
    assert effect_of(client, run_id, key).status == CONFIRMED
    answering(DispatchResult("failed", error=response))
    key = send(client, run_id)
    assert outcomes(outbox_dispatch_once(client=client)) == ["failed"]
    assert effect_of(client, run_id, key).status == FAILED
    assert len(requests) == 1


def test_attempts_come_to_an_end(client: TapeClient) -> None:
    requests = answering(DispatchResult("unknown", retry_at_ms=1))
    run_id = begin(client)
    key = send(client, run_id, IDEMPOTENT)
    seen = [outcomes(outbox_dispatch_once(client=client, dispatch_max_attempts=3)) for _ in range(4)]
    assert (seen, len(requests)) == ([["retry"], ["retry"], ["unknown"], []], 3)
    assert effect_of(client, run_id, key).dispatch_attempts == 3
    answering(DispatchResult("failed", error={"why": "busy"}, retry_at_ms=1))
    key = send(client, run_id, NON_IDEMPOTENT)
    seen = [outcomes(outbox_dispatch_once(client=client, dispatch_max_attempts=2)) for _ in range(3)]
    assert seen == [["retry"], ["failed"], []]  # certainly never sent, so it is no doubt


@pytest.mark.parametrize(
    ("look", "outcome", "is_sent"),
    [
        (lambda: {"ref": 1}, "confirmed", False),
        (lambda: False, "confirmed", True),
        (lambda: "failed", "failed", False),
        (lambda: "stuck", "unknown", False),
        (lambda: None, "unknown", False),
        (lambda: 1 / 0, "unknown", False),
        (None, "unknown", False),
    ],
)
def test_an_effect_of_a_dispatcher_that_died_is_observed_before_it_is_sent(
    client: TapeClient, look: Any, outcome: str, is_sent: bool
) -> None:
    requests = answering({}, look=look)
    run_id = begin(client)
    key = send(client, run_id)
    client.claim_effect_dispatch(run_id=run_id, idempotency_key=key, claimer="vanished", lease_ttl_ms=1)
    wait_for(lambda: client.list_effects_to_dispatch().effects, "the claim to run out")
    (report,) = outbox_dispatch_once(client=client)
    assert (report["outcome"], len(requests)) == (outcome, int(is_sent))
    assert is_sent or "vanished" in report["reason"]


def test_an_idempotent_effect_is_simply_sent_again(client: TapeClient) -> None:
    requests = answering({}, look=lambda: 1 / 0)
    run_id = begin(client)
    key = send(client, run_id, IDEMPOTENT)
    client.claim_effect_dispatch(run_id=run_id, idempotency_key=key, claimer="vanished", lease_ttl_ms=1)
    wait_for(lambda: client.list_effects_to_dispatch().effects, "the claim to run out")
    assert outcomes(outbox_dispatch_once(client=client)) == ["confirmed"]
    assert len(requests) == 1


@pytest.mark.parametrize(
    ("look", "outcome"), [(lambda: True, "confirmed"), (lambda: False, "failed"), (None, "unknown")]
)
def test_a_refusal_does_not_hide_that_an_earlier_attempt_may_have_come_through(
    client: TapeClient, look: Any, outcome: str
) -> None:
    lost = DispatchResult("unknown", retry_at_ms=1)
    busy, refused = DispatchResult("failed", retry_at_ms=1), DispatchResult("failed", error={"status": 401})
    answering(lost, busy, refused, look=look)
    run_id = begin(client)
    key = send(client, run_id, IDEMPOTENT)
    seen = [outcomes(outbox_dispatch_once(client=client)) for _ in range(3)]
    assert seen == [["retry"], ["retry"], [outcome]]
    assert (
        effect_of(client, run_id, key).status == {"confirmed": CONFIRMED, "failed": FAILED, "unknown": UNKNOWN}[outcome]
    )


@pytest.mark.parametrize(
    ("certainty", "outcome"),
    [
        (pb.DISPATCH_CERTAINTY_FAILED, "failed"),
        (pb.DISPATCH_CERTAINTY_UNKNOWN, "confirmed"),
        (pb.DISPATCH_CERTAINTY_UNSPECIFIED, "confirmed"),  # recorded by an older dispatcher
    ],
)
def test_the_other_side_is_asked_unless_every_attempt_failed_for_certain(
    client: TapeClient, certainty: int, outcome: str
) -> None:
    answering(DispatchResult("failed", error={"status": 401}), look=lambda: True)
    run_id = begin(client)
    key = send(client, run_id, IDEMPOTENT)
    client.record_dispatch_attempt(
        run_id=run_id, idempotency_key=key, error="timed out", next_dispatch_at_ms=1, certainty=certainty
    )
    assert effect_of(client, run_id, key).dispatch_certainty == certainty
    assert outcomes(outbox_dispatch_once(client=client)) == [outcome]


def test_a_duplicate_is_undone_also_if_its_run_is_healthy(client: TapeClient) -> None:
    def refund() -> None: ...

    register_tool_compensator("pay", refund)
    register(LocalConnector("bank", lambda: None, look=lambda: ObservationResult("duplicate", "tx-2", {"ref": "tx-2"})))
    run_id = begin(client)
    key = send(client, run_id)
    client.claim_effect_dispatch(run_id=run_id, idempotency_key=key, claimer="vanished", lease_ttl_ms=1)
    wait_for(lambda: client.list_effects_to_dispatch().effects, "the claim to run out")
    assert outcomes(outbox_dispatch_once(client=client)) == ["duplicate"]
    (owed,) = client.list_unresolved_obligations(only_owed=True).obligations
    assert (owed.kind, owed.owed, owed.act) == ("refund", 2, "duplicate:tx-2")


def test_a_send_that_takes_longer_than_its_claim_keeps_it(client: TapeClient) -> None:
    started, go_on = threading.Event(), threading.Event()

    def slowly() -> None:
        started.set()
        go_on.wait(120)

    register(LocalConnector("bank", slowly, look=lambda: False))
    run_id = begin(client)
    key = send(client, run_id)
    effect = effect_of(client, run_id, key)
    reports: list[dict[str, Any]] = []

    def dispatch() -> None:
        reports.append(dispatch_one(effect, client=client, claimer="slow", lease_ttl_ms=10_000))

    sender = threading.Thread(target=dispatch)
    sender.start()
    assert started.wait(120)
    first = effect_of(client, run_id, key).dispatch_claim_expires_at_ms
    wait_for(lambda: effect_of(client, run_id, key).dispatch_claim_expires_at_ms > first, "the claim to be renewed")
    assert dispatch_one(effect, client=client, claimer="other")["outcome"] == "held"
    go_on.set()
    sender.join()
    assert outcomes(reports) == ["confirmed"]


def test_who_lost_the_claim_does_not_send(client: TapeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = answering({})
    run_id = begin(client)
    effect = effect_of(client, run_id, send(client, run_id))
    clock, claimed = time.monotonic, client.claim_effect_dispatch

    def stopped_meanwhile(**fields: Any) -> Any:
        answer = claimed(**fields)
        monkeypatch.setattr(time, "monotonic", lambda: clock() + 2000)
        return answer

    monkeypatch.setattr(client, "claim_effect_dispatch", stopped_meanwhile)
    assert dispatch_one(effect, client=client, claimer="stopped")["outcome"] == "lost"
    assert requests == []


def test_effects_of_connectors_that_others_have_are_left_and_hide_nothing(client: TapeClient) -> None:
    run_id = begin(client)
    for _ in range(5):
        client.begin_effect(run_id=run_id, decision_index=-1, tool_name="t", custom_key=f"k{_}", dispatch_mode=2,
                            connector="other")  # fmt: skip
    assert outcomes(outbox_dispatch_once(client=client)) == ["unregistered"] * 5
    answering({})
    send(client, run_id)
    assert outcomes(outbox_dispatch_once(client=client, limit=5)) == ["confirmed"]
    assert {each.dispatch_attempts for each in client.list_effects_to_dispatch().effects} == {0}


def test_two_dispatchers_send_everything_once(client: TapeClient, url: str) -> None:
    sent: Counter[int] = Counter()
    register(LocalConnector("bank", lambda number: sent.update([number])))
    run_id = begin(client)
    for number in range(40):
        send(client, run_id, number=number)
    start = threading.Barrier(2)

    def dispatch() -> None:
        start.wait()
        outbox_dispatch_once(url, concurrency=4)

    threads = [threading.Thread(target=dispatch) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sent == Counter(dict.fromkeys(range(40), 1))
    assert client.list_effects_to_dispatch().effects == []


def test_a_dispatcher_is_woken_by_the_journal_and_stops_with_its_event(client: TapeClient, url: str) -> None:
    answering({})
    stop, seen = threading.Event(), []

    def tick(reports: list[dict[str, Any]]) -> None:
        seen.extend(reports)

    dispatcher = threading.Thread(
        target=run_outbox_dispatcher, args=(url,), kwargs={"interval_s": 600, "on_tick": tick, "stop": stop}
    )
    dispatcher.start()
    run_id = begin(client)
    # However late the dispatcher began to listen, one of these wakes it before its ten minutes are over.
    wait_for(lambda: send(client, run_id) and seen, "the dispatcher to be woken")
    stop.set()
    dispatcher.join(120)
    assert not dispatcher.is_alive()
    assert set(outcomes(seen)) == {"confirmed"}


def test_once_raises_what_a_loop_would_wait_for(url: str) -> None:
    with pytest.raises(ServerUnreachable):
        run_outbox_dispatcher("tape://127.0.0.1:1", once=True)
    ticks: list[Any] = []
    run_outbox_dispatcher(url, once=True, on_tick=ticks.append)
    assert ticks == [[]]
