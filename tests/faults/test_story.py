"""The model finds what is wrong: one that finds nothing proves nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.faults.story import Promise, Received, Sent, Story, complaints, judge_receipts, key_of

STRICT = Promise("global", dedup=True, is_strict=True)


def sent(count: int, **times: int) -> list[Sent]:
    return [Sent(number, key_of(number), times.get(f"m{number}", 1)) for number in range(count)]


def story(runs: list[int], events: list[tuple[str, int, int]] = (), **more: Any) -> Story:  # type: ignore[assignment]
    reported = [
        (verb, {"message_id": f"m{number}", "spool_ref": f"ref/{position}", "recv_seq": position})
        for verb, number, position in events
    ]
    return Story(runs=runs, numbers={f"m{number}": number for number in runs}, events=reported, **more)


def waited(*numbers: int) -> list[tuple[str, int, int]]:
    return [(verb, number, number) for verb in ("message.spooled", "message.replayed") for number in numbers]


def found(runs: list[int], events: Any = (), promise: Promise = STRICT, **more: Any) -> str:
    left = more.pop("left", {})
    received = [Received(f"{position}/order", number) for position, number in enumerate(more.pop("received", runs))]
    reported = story(runs, events, redelivered=more.pop("redelivered", set()))
    totals = {"spooled": len(reported.refs("message.spooled")), "replayed": len(reported.refs("message.replayed"))}
    return "\n".join(complaints(sent(5, **more), reported, promise, left, totals, received))


def test_nothing_is_said_of_what_is_as_promised() -> None:
    assert found([0, 1, 2, 3, 4]) == ""
    assert found([0, 1, 2, 3, 4], waited(1, 2)) == ""
    assert found([0, 1, 3, 4], left={"dlq": [2]}) == ""


def test_a_message_that_is_nowhere_is_lost_and_one_that_was_never_sent_is_strange() -> None:
    assert "\nlost: [2]" in found([0, 1, 3, 4])
    assert "\nnever sent: [7]" in found([0, 1, 2, 3, 4, 7])


def test_what_the_downstream_did_not_receive_is_named_although_its_run_began() -> None:
    everything = [0, 1, 2, 3, 4]
    assert found(everything, received=[0, 1, 3, 4]) == "the downstream never received: [2]"
    assert found(everything, received=[*everything, 7]) == "the downstream received what was never sent: [7]"


def test_a_second_run_that_reached_the_downstream_is_named_and_a_repeated_request_is_not() -> None:
    everything = [0, 1, 2, 3, 4]
    assert found(everything, received=[0, 1, 1, 2, 3, 4]) == "the downstream received several runs of: {1: 2}"
    messages = {each.number: each for each in sent(2)}
    repeated = [Received("a", 0), Received("a", 0), Received("b", 1)]
    assert judge_receipts(messages, repeated, STRICT, {}) == []


def test_the_order_of_arrival_at_the_downstream_is_compared_with_that_of_sending() -> None:
    assert "the downstream received [1] late" in found([0, 1, 2, 3, 4], received=[0, 2, 1, 3, 4])
    promise = dataclasses.replace(STRICT, ordering="per_key")
    assert found([0, 1, 2, 3, 4], received=[0, 2, 1, 3, 4], promise=promise) == ""


def test_two_runs_of_one_message_need_a_redelivery_and_no_dedup() -> None:
    twice = [0, 1, 1, 2, 3, 4]
    careless = dataclasses.replace(STRICT, dedup=False)
    assert "more than one run: {1: 2}" in found(twice, m1=2)
    assert found(twice, promise=careless) == "twice without a redelivery: {1: 2}"
    assert found(twice, promise=careless, m1=2) == ""
    assert found(twice, promise=careless, redelivered={1}) == ""
    assert found(twice, waited(1), promise=careless) == ""


@pytest.mark.parametrize(("ordering", "complains"), [("global", True), ("per_key", False), ("none", False)])
def test_who_overtakes_another_of_its_lane_is_named(ordering: str, complains: bool) -> None:
    promise = dataclasses.replace(STRICT, ordering=ordering)
    assert ("overtaken" in found([0, 2, 1, 3, 4], promise=promise)) == complains


def test_what_waited_leaves_in_the_order_of_its_receipt_also_where_the_source_keeps_none() -> None:
    promise = dataclasses.replace(STRICT, is_strict=False)
    assert "replayed out of turn" in found([0, 2, 1, 3, 4], waited(1, 2), promise=promise)
    assert found([0, 2, 1, 3, 4], promise=promise) == ""


def test_the_journal_and_the_spool_have_to_add_up() -> None:
    runs = [0, 1, 2, 3, 4]
    assert "left without having come: ['ref/1']" in found(runs, [("message.replayed", 1, 1)])
    assert "1 wait by the journal" in found(runs, [("message.spooled", 1, 1)])
    left = found(runs[:4], [("message.spooled", 4, 4)], left={"spool": [4]})
    assert left == "the downstream never received: [4]"
    received = [Received(str(number), number) for number in runs]
    miscounted = complaints(sent(5), story(runs, waited(1)), STRICT, {}, {"spooled": 2, "replayed": 1}, received)
    assert miscounted == ["2 spooled by `tape subscriptions outage`, 1 by the journal"]
