"""Results of runs: recorded with the end, returned by every later call, and errors of runs that have none."""

from __future__ import annotations

import dataclasses
import json
import threading
from typing import Any

import pytest

import tape
from tape import TapeClient, effect, gate
from tape.errors import InvalidInput, InvalidJson, RunFailed, RunNotEnded, RunOver, RunParked, RunResultRejected
from tape.proto import tape_pb2 as pb
from tests.durable.test_effect import run_of

IDS: dict[str, Any] = {"user_id": "u", "session_id": "s", "invocation_id": "i-1"}


@dataclasses.dataclass
class Receipt:
    """What a payment gave."""

    reference: str
    amount: int


def entry_of_end(observer: TapeClient, run_id: str) -> dict[str, Any]:
    for batch in observer.follow_batches("/tape/run/*/**"):
        for entry in batch.entries:
            payload = json.loads(entry.payload_json)
            if payload["run_id"] == run_id and payload["status"] not in ("running", "runnable"):
                return dict(payload)
    raise AssertionError


def test_a_finished_run_returns_its_result_when_it_is_begun_again(url: str, observer: TapeClient) -> None:
    acts: list[str] = []

    @effect
    def act(text: str) -> str:
        acts.append(text)
        return text

    for number in (1, 2):
        with run_of(url) as run:
            assert run.is_finished == (number == 2)
            chosen = run.decide(lambda: "blue")
            run.result = {"did": act(chosen), "number": number}
        assert run.result == {"did": "blue", "number": 1}
    assert acts == ["blue"]
    state = observer.get_run(run.run_id)
    assert json.loads(state.result_json) == {"did": "blue", "number": 1}
    assert tape.result(run.run_id, url=url) == {"did": "blue", "number": 1}
    assert entry_of_end(observer, run.run_id)["result"] == {"did": "blue", "number": 1}
    assert not observer.list_runs().runs[0].result_json


def test_a_finished_run_begins_nothing_new(url: str, observer: TapeClient) -> None:
    asked: list[str] = []

    @effect
    def act(text: str) -> str:
        asked.append(text)
        return text

    with run_of(url) as run:
        pass
    with pytest.raises(RunOver), run_of(url) as again:
        act("new")
    with pytest.raises(RunOver), run_of(url) as again:
        again.decide(lambda: asked.append("model"))
    with pytest.raises(RunOver), run_of(url):
        gate("approve")
    assert asked == []
    assert observer.get_run(run.run_id).status == pb.RUN_STATUS_TERMINAL


def test_a_function_is_executed_once_and_its_result_returned_ever_after(url: str) -> None:
    called: list[int] = []

    def pay(run: tape.DurableRun, amount: int) -> Receipt:
        called.append(amount)
        return Receipt(run.decide(lambda: "t-1"), amount)

    for _ in range(2):
        assert tape.run_once(pay, "app", arguments={"amount": 7}, url=url, **IDS) == Receipt("t-1", 7)
    assert called == [7]
    with pytest.raises(InvalidInput, match="invocation_id"):
        tape.run_once(pay, "app", invocation_id="", url=url)


async def test_a_coroutine_function_is_executed_once(url: str) -> None:
    called: list[int] = []

    async def pay(amount: int) -> dict[str, int]:
        called.append(amount)
        return {"paid": amount}

    for _ in range(2):
        assert await tape.run_once(pay, "app", arguments={"amount": 7}, url=url, **IDS) == {"paid": 7}
    assert called == [7]


def test_a_failed_run_raises_its_error_where_its_result_is_asked_for(url: str, observer: TapeClient) -> None:
    with pytest.raises(ZeroDivisionError), run_of(url) as run:
        _ = 1 / 0
    with pytest.raises(RunFailed, match="is FAILED: ZeroDivisionError: division by zero") as raised:
        tape.result(run.run_id, url=url)
    failure = raised.value
    assert (failure.run_id, failure.ended_as, failure.error_type) == (run.run_id, "FAILED", "ZeroDivisionError")
    assert entry_of_end(observer, run.run_id)["error"] == {"type": "ZeroDivisionError", "message": "division by zero"}
    with run_of(url) as again:  # it may be executed again
        again.result = "well"
    assert tape.result(run.run_id, url=url) == "well"


def test_a_run_that_has_not_ended_has_no_result_yet(url: str, observer: TapeClient) -> None:
    with pytest.raises(RunParked), run_of(url) as run:
        gate("approve")
    with pytest.raises(RunNotEnded, match="waits at 'approve'"):
        tape.result(run.run_id, url=url)
    with pytest.raises(RunNotEnded):
        tape.result(run.run_id, wait=True, timeout_s=0.05, url=url)
    results: list[Any] = []
    waiting = threading.Thread(target=lambda: results.append(tape.result(run.run_id, wait=True, url=url)))
    waiting.start()
    observer.send_signal(run_id=run.run_id, gate_name="approve", resolution_json="{}")
    with run_of(url) as again:
        gate("approve")
        again.result = [1, 2]
    waiting.join()
    assert results == [[1, 2]]


def test_a_result_that_is_not_json_leaves_the_run_open(url: str, observer: TapeClient) -> None:
    acts: list[int] = []

    @effect
    def act() -> int:
        acts.append(1)
        return 1

    def wrong() -> Any:
        return {"socket": object(), "act": act()}

    with pytest.raises(RunResultRejected, match="a dict and cannot be recorded"):
        tape.run_once(wrong, "app", lease_ttl_ms=1, url=url, **IDS)
    (run,) = observer.list_runs().runs
    assert run.status == pb.RUN_STATUS_RUNNING
    assert tape.run_once(act, "app", lease_wait_s=5, url=url, **IDS) == 1
    assert acts == [1]


def test_a_result_is_as_large_as_a_payload_at_most(url: str, observer: TapeClient) -> None:
    size = observer.get_server_info().max_payload_bytes if hasattr(observer, "get_server_info") else 1 << 20
    with pytest.raises(RunResultRejected, match="max_payload_bytes"), run_of(url, lease_ttl_ms=1) as run:
        run.result = "x" * (size + 1)
    with run_of(url, lease_wait_s=5) as run:
        run.result = "x" * (size - 100)
    assert len(tape.result(run.run_id, url=url)) == size - 100
    ended = entry_of_end(observer, run.run_id)
    assert ended["result_bytes"] == size - 98
    assert "result" not in ended


def test_a_server_refuses_results_that_are_not_json_or_of_runs_that_fail(url: str, observer: TapeClient) -> None:
    run_id = observer.begin_run(app_name="app", **IDS).run_id
    for text in ("{", "nan", "[" * 100_000):
        with pytest.raises(InvalidJson, match="result_json"):
            observer.end_run(run_id=run_id, result_json=text)
    with pytest.raises(InvalidInput, match="result_json belongs to a run that ends as TERMINAL"):
        observer.end_run(run_id=run_id, status=pb.RUN_STATUS_FAILED, result_json="1")
    assert observer.get_run(run_id).status == pb.RUN_STATUS_RUNNING


# ── children ─────────────────────────────────────────────────────────────────────────────────────


def test_a_child_is_recorded_with_its_parent_and_found_again(url: str, observer: TapeClient) -> None:
    ids = []
    for _ in range(2):
        with run_of(url) as run:
            for number in range(2):
                with run.child() as child:
                    child.result = number
                ids.append(child.run_id)
            run.result = [run.result_of(each) for each in ids[-2:]]
    assert ids[:2] == ids[2:]
    assert len(set(ids)) == 2
    assert run.result == [0, 1]
    children = observer.list_runs(parent_run_id=run.run_id).runs
    assert {each.run_id for each in children} == set(ids)
    assert observer.get_run(ids[0]).parent_run_id == run.run_id


def test_a_parent_parks_until_its_child_ends(url: str, observer: TapeClient) -> None:
    with pytest.raises(RunParked), run_of(url) as run:  # noqa: PT012 - the end of the block raises
        child = run.child("other")
        with pytest.raises(RunParked), child:
            gate("ask")
        run.result_of(child)
    waiting = observer.get_run(run.run_id)
    assert (waiting.status, waiting.waiting_on_gate) == (pb.RUN_STATUS_WAITING, f"child:{child.run_id}")
    observer.send_signal(run_id=child.run_id, gate_name="ask", resolution_json="{}")
    with tape.continue_run(observer.get_run(child.run_id), url=url) as again:
        gate("ask")
        again.result = "asked"
    assert observer.get_run(run.run_id).status == pb.RUN_STATUS_RUNNABLE
    with run_of(url) as run:
        run.result = run.result_of(child.run_id)
    assert tape.result(run.run_id, url=url) == "asked"


def test_the_error_of_a_child_reaches_its_parent(url: str) -> None:
    with run_of(url) as run:
        child = run.child()
        with pytest.raises(ZeroDivisionError), child:
            _ = 1 / 0
        with pytest.raises(RunFailed, match="ZeroDivisionError"):
            run.result_of(child)


def test_children_are_cancelled_with_their_parent_unless_they_are_left(url: str, observer: TapeClient) -> None:
    ids: dict[str, Any] = {"app_name": "app", "user_id": "u", "session_id": "s"}
    parent = observer.begin_run(**ids, invocation_id="parent").run_id
    child = observer.begin_run(**ids, invocation_id="child", parent_run_id=parent).run_id
    grandchild = observer.begin_run(**ids, invocation_id="grandchild", parent_run_id=child).run_id
    left = observer.begin_run(
        **ids, invocation_id="left", parent_run_id=parent, on_parent_cancel=pb.CHILD_POLICY_LEAVE
    ).run_id
    below_left = observer.begin_run(**ids, invocation_id="below left", parent_run_id=left).run_id
    done = observer.begin_run(**ids, invocation_id="done", parent_run_id=parent).run_id
    observer.end_run(run_id=done)
    observer.end_run(run_id=parent, status=pb.RUN_STATUS_CANCELLED)
    statuses = [observer.get_run(each).status for each in (parent, child, grandchild, left, below_left, done)]
    cancelled, running = pb.RUN_STATUS_CANCELLED, pb.RUN_STATUS_RUNNING
    assert statuses == [cancelled, cancelled, cancelled, running, running, pb.RUN_STATUS_TERMINAL]
    with pytest.raises(tape.RunCancelled):
        observer.begin_run(**ids, invocation_id="late", parent_run_id=parent)
    with pytest.raises(tape.TapeError, match="no such run"):
        observer.begin_run(**ids, invocation_id="x", parent_run_id="nowhere")
