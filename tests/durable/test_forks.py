"""Forks: a run that shares what another one has recorded before a point, and goes on from there on its own."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest

import tape
from tape import TapeClient, durable_run, effect
from tape.errors import ForkRefused, InvalidInput, InvalidJson, NotFound, RunParked
from tape.proto import tape_pb2 as pb
from tape.reactors import compensate_once, recover_once


class Desk:
    """A trader: what it did, and how it decides."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.acts: list[str] = []
        self.keys: list[str] = []
        self.asked = 0
        desk = self

        def undo(what: str) -> None:
            desk.acts.append(f"undo {what}")

        @effect(compensate=undo)
        def trade(what: str, tool_context: Any = None) -> str:
            desk.acts.append(what)
            desk.keys.append(tape.idempotency_key(tool_context))
            return f"done {what}"

        self.trade = trade

    def agent(self, run: tape.DurableRun, choices: Callable[[int], str] = lambda n: f"buy {n}") -> list[str]:
        done = []
        for number in range(3):

            def ask(number: int = number) -> str:
                self.asked += 1
                return choices(number)

            done.append(self.trade(run.decide(ask, request={"number": number})))
        return done

    def drive(self, invocation: str = "origin", **options: Any) -> str:
        with durable_run("desk", invocation_id=invocation, url=self.url, **options) as run:
            self.agent(run)
        return run.run_id


@pytest.fixture
def desk(url: str) -> Desk:
    return Desk(url)


def test_a_fork_repeats_nothing_before_the_point_and_goes_on_from_there(desk: Desk, observer: TapeClient) -> None:
    origin = desk.drive(scopes=["desk"], labels={"team": "a"})
    forked = observer.fork_run(origin, at_decision=1)
    assert (forked.steps, forked.run.forked_from, forked.run.forked_at_decision) == (2, origin, 1)
    assert (list(forked.run.scopes), dict(forked.run.labels)) == (["desk"], {"team": "a"})
    assert forked.run.run_id != origin
    with tape.continue_run(forked.run, url=desk.url) as run:
        assert run.run_id == forked.run.run_id
        done = desk.agent(run, lambda n: f"sell {n}")
    assert done == ["done buy 0", "done sell 1", "done sell 2"]
    assert desk.acts == ["buy 0", "buy 1", "buy 2", "sell 1", "sell 2"]
    assert all(key.startswith(run.run_id) for key in desk.keys[3:]), "new effects have keys of their own"
    assert observer.get_run(origin).status == pb.RUN_STATUS_TERMINAL
    assert len(observer.list_run_steps(origin).steps) == 6


def test_a_decision_can_be_set(desk: Desk, observer: TapeClient) -> None:
    origin = desk.drive()
    forked = observer.fork_run(origin, at_decision=1, decision_json='{"decision": "hold"}', reason="what if")
    with tape.continue_run(forked.run, url=desk.url) as run:
        desk.agent(run, lambda n: f"sell {n}")
    assert desk.acts[3:] == ["hold", "sell 2"]
    assert desk.asked == 4, "the set decision was not made again"


def test_the_journal_of_a_fork_says_where_it_comes_from_and_repeats_no_entry(desk: Desk, observer: TapeClient) -> None:
    origin = desk.drive()
    forked = observer.fork_run(origin, at_decision=2, decision_json='{"decision": "hold"}', reason="what if").run
    begun, decided = _entries(observer, forked)
    payload = json.loads(begun.payload_json)
    assert payload["forked_from"] == origin
    assert (payload["forked_at_decision"], payload["shared_steps"], payload["reason"]) == (2, 4, "what if")
    assert decided.kind == "decision"


def _entries(client: TapeClient, run: pb.RunState) -> list[Any]:
    found = []
    for entry in client.subscribe_run(run_id=run.run_id):
        found.append(entry)
        if len(found) == run.seq_cursor:
            break
    return found


def test_a_fork_inherits_no_obligations(desk: Desk, observer: TapeClient) -> None:
    origin = desk.drive()
    forked = observer.fork_run(origin, at_decision=2).run
    assert len(observer.list_obligations(run_id=origin).obligations) == 3
    assert not observer.list_obligations(run_id=forked.run_id).obligations
    with contextlib.suppress(ValueError), tape.continue_run(forked, url=desk.url) as run:
        desk.agent(run, lambda n: f"sell {n}")
        raise ValueError
    compensate_once(client=observer)
    assert desk.acts[4:] == ["undo sell 2"], "what the origin did is not undone by its fork"


def test_recovery_carries_a_fork_on(desk: Desk, observer: TapeClient) -> None:
    forked = observer.fork_run(desk.drive(), at_decision=1).run

    def redrive(state: pb.RunState) -> None:
        with tape.continue_run(state, url=desk.url) as run:
            desk.agent(run, lambda n: f"sell {n}")

    (report,) = recover_once(redrive_fn=redrive, client=observer)
    assert (report["run_id"], report["outcome"]) == (forked.run_id, "recovered")
    assert observer.get_run(forked.run_id).status == pb.RUN_STATUS_TERMINAL


def test_all_of_a_run_can_be_shared_and_a_fork_can_be_forked(desk: Desk, observer: TapeClient) -> None:
    first = observer.fork_run(desk.drive(), at_decision=3)
    assert first.steps == 6
    second = observer.fork_run(first.run.run_id, at_decision=3)
    assert (second.steps, second.run.forked_from) == (6, first.run.run_id)
    with tape.continue_run(second.run, url=desk.url) as run:
        desk.agent(run, lambda n: "never")
    assert len(desk.acts) == 3
    third = observer.fork_run(first.run.run_id, at_decision=1)
    assert third.steps == 2


def test_a_version_before_shared_steps_is_the_lowest(desk: Desk, observer: TapeClient) -> None:
    forked = observer.fork_run(desk.drive(), at_decision=3).run
    with tape.continue_run(forked, url=desk.url) as run:
        assert run.version("new way", 2) == 1
        desk.agent(run)
        assert run.version("later", 2) == 2


def test_answered_gates_are_shared_and_unanswered_ones_are_asked_again(desk: Desk, observer: TapeClient) -> None:
    def agent(run: tape.DurableRun) -> None:
        run.decide(lambda: 1)
        tape.gate("first")
        run.decide(lambda: 2)
        tape.gate("second")
        run.decide(lambda: 3)

    def drive() -> None:
        with durable_run("gated", invocation_id="origin", url=desk.url) as run:
            agent(run)

    for gate in ("first", "second"):
        with pytest.raises(RunParked):
            drive()
        (run_state,) = observer.list_runs(app_name="gated").runs
        observer.send_signal(run_id=run_state.run_id, gate_name=gate, resolution_json='{"approved": true}')
    drive()
    forked = observer.fork_run(run_state.run_id, at_decision=1)
    assert forked.gates == 1
    with pytest.raises(RunParked, match="second"), tape.continue_run(forked.run, url=desk.url) as run:
        agent(run)


@pytest.mark.parametrize("status", [0, pb.EFFECT_STATUS_UNKNOWN])
def test_a_run_is_not_forked_across_an_effect_whose_outcome_is_open(
    desk: Desk, observer: TapeClient, status: int
) -> None:
    ids = {"app_name": "desk", "user_id": "u", "session_id": "s", "invocation_id": "open"}
    run_id = observer.begin_run(**ids).run_id
    observer.record_decision(run_id=run_id, decision_index=0, response_json='{"decision": 1}')
    begun = observer.begin_effect(run_id=run_id, decision_index=0, tool_name="pay")
    if status:
        observer.complete_effect(run_id=run_id, idempotency_key=begun.idempotency_key, status=status)
    with pytest.raises(ForkRefused, match="pay/0"):
        observer.fork_run(run_id, at_decision=1)
    assert observer.fork_run(run_id, at_decision=0).steps == 0, "before it is fine"
    assert observer.fork_run(run_id, at_seq=begun.seq).steps == 1


def test_the_same_call_again_is_the_same_fork(desk: Desk, observer: TapeClient) -> None:
    origin = desk.drive()
    one, again = (observer.fork_run(origin, at_decision=1, invocation_id="f-1") for _ in range(2))
    assert one.run.run_id == again.run.run_id
    with pytest.raises(ForkRefused, match="f-1"):
        observer.fork_run(origin, at_decision=2, invocation_id="f-1")
    with pytest.raises(ForkRefused, match="origin"):
        observer.fork_run(origin, at_decision=2, invocation_id="origin")


def test_what_cannot_be_forked_is_named(desk: Desk, observer: TapeClient) -> None:
    origin = desk.drive()
    with pytest.raises(NotFound):
        observer.fork_run("no-such-run")
    with pytest.raises(InvalidInput, match="decisions up to 2 only"):
        observer.fork_run(origin, at_decision=4)
    with pytest.raises(InvalidInput, match="negative"):
        observer.fork_run(origin, at_decision=-1)
    with pytest.raises(InvalidInput, match="no decision 3"):
        observer.fork_run(origin, at_decision=3, decision_json="{}")
    with pytest.raises(InvalidJson, match="decision_json"):
        observer.fork_run(origin, at_decision=1, decision_json="{")
    with pytest.raises(InvalidInput, match="reason"):
        observer.fork_run(origin, at_decision=1, reason="x" * 1_001)
    observer.compact_run(origin, ignore_unowed=True)
    with pytest.raises(ForkRefused, match="compacted"):
        observer.fork_run(origin, at_decision=1)


def test_steps_come_in_pages_that_are_bounded(desk: Desk, observer: TapeClient) -> None:
    origin = desk.drive()
    seen: list[int] = []
    cursor = ""
    while True:
        page = observer.list_run_steps(origin, cursor=cursor, limit=4)
        seen += [(step.decision if step.HasField("decision") else step.effect).seq for step in page.steps]
        cursor = page.next_cursor
        if not cursor:
            break
        assert len(page.steps) == 4
    assert len(seen) == 6
    assert seen == sorted(seen)
    ids = {"app_name": "desk", "user_id": "u", "session_id": "s", "invocation_id": "large"}
    run_id = observer.begin_run(**ids).run_id
    large = json.dumps("x" * 900_000)
    for index in range(4):
        observer.record_decision(run_id=run_id, decision_index=index, response_json=large)
    assert [len(page.steps) for page in _pages(observer, run_id)] == [2, 2]
    for wrong in ({"limit": -1}, {"limit": 1_001}, {"cursor": "x"}):
        with pytest.raises(InvalidInput, match=next(iter(wrong))):
            observer.list_run_steps(origin, **wrong)


def _pages(client: TapeClient, run_id: str) -> list[pb.ListRunStepsResponse]:
    pages = [client.list_run_steps(run_id)]
    while pages[-1].next_cursor:
        pages.append(client.list_run_steps(run_id, cursor=pages[-1].next_cursor))
    return pages


def test_a_business_key_stays_with_the_run_that_used_it(desk: Desk, observer: TapeClient) -> None:
    paid: list[str] = []

    @effect(connector="bank", business_key="{invoice}")
    def pay(invoice: str) -> str:
        paid.append(invoice)
        return f"paid {invoice}"

    with durable_run("desk", url=desk.url) as run:
        run.decide(lambda: 1)
        pay("7")
        run.decide(lambda: 2)
    for at, expected in ((1, ["7"]), (0, ["7"])):
        forked = observer.fork_run(run.run_id, at_decision=at).run
        with tape.continue_run(forked, url=desk.url) as again:
            again.decide(lambda: 1)
            assert pay("7") == "paid 7"
        assert paid == expected, "an invoice is paid once, whichever run asks"
