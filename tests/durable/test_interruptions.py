"""A parked, cancelled or fenced run does nothing more, whatever the program around it swallows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import tape
from tape import TapeClient, effect, gate
from tape.errors import (
    RunCancelled,
    RunFenced,
    RunInterrupted,
    RunOver,
    RunParked,
    RunWaiting,
    TapeError,
    all_errors,
)
from tape.proto import tape_pb2 as pb
from tests.durable.test_effect import run_of
from tests.services import wait_for


class Downstream:
    """What reached the other side."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.asked: list[str] = []

        @effect
        def send(text: str) -> str:
            self.calls.append(text)
            return text

        @effect
        async def send_later(text: str) -> str:
            self.calls.append(text)
            return text

        self.send = send
        self.send_later = send_later

    def think(self, text: str) -> str:
        self.asked.append(text)
        return text


def swallowing(call: Any) -> str:
    """Call a tool as agent frameworks do: what it raises becomes its answer."""
    try:
        return str(call())
    except Exception as error:
        return f"the tool failed: {error}"


def swallowing_all(call: Any) -> str:
    try:
        return str(call())
    except BaseException as error:
        return f"the tool failed: {error}"


def test_an_interruption_is_no_exception_that_ordinary_handlers_see() -> None:
    interruptions = [kind for kind in all_errors().values() if issubclass(kind, RunInterrupted)]
    assert {RunInterrupted, RunParked, RunCancelled, RunFenced} <= set(interruptions)
    assert not [kind for kind in interruptions if issubclass(kind, Exception) or issubclass(kind, TapeError)]
    assert all(kind.status == "FAILED_PRECONDITION" for kind in interruptions)


def test_an_ordinary_handler_does_not_swallow_that_the_run_parked(url: str, observer: TapeClient) -> None:
    downstream = Downstream()
    with pytest.raises(RunParked), run_of(url) as run:  # noqa: PT012 - the end of the block raises
        swallowing(lambda: gate("approve"))
        swallowing(lambda: downstream.send("while the gate is open"))
    assert downstream.calls == []
    assert observer.get_run(run.run_id).status == pb.RUN_STATUS_WAITING


def test_a_program_that_swallows_everything_goes_on_after_parking_and_nothing_reaches_the_downstream(
    url: str, observer: TapeClient
) -> None:
    downstream = Downstream()
    with pytest.raises(RunParked, match="gate 'approve'"), run_of(url) as run:  # noqa: PT012 - the end of the block raises
        downstream.send("before")
        swallowing_all(lambda: gate("approve"))
        swallowing_all(lambda: downstream.send("after"))
        swallowing_all(lambda: run.decide(lambda: downstream.think("after")))
        swallowing_all(lambda: gate("another"))
    assert (downstream.calls, downstream.asked) == (["before"], [])
    parked = observer.get_run(run.run_id)
    assert (parked.status, parked.waiting_on_gate) == (pb.RUN_STATUS_WAITING, "approve")
    observer.send_signal(run_id=run.run_id, gate_name="approve", resolution_json="{}")
    with run_of(url):
        downstream.send("before")
        gate("approve")
        downstream.send("after")
    assert downstream.calls == ["before", "after"]
    assert observer.get_run(run.run_id).status == pb.RUN_STATUS_TERMINAL


def test_a_gate_that_is_answered_while_the_program_waits_lets_it_go_on(url: str, observer: TapeClient) -> None:
    downstream = Downstream()
    with run_of(url) as run:
        with pytest.raises(RunParked):
            gate("approve")
        observer.send_signal(run_id=run.run_id, gate_name="approve", resolution_json='{"approved": true}')
        assert gate("approve") == {"approved": True}
        downstream.send("after")
    assert downstream.calls == ["after"]
    assert observer.get_run(run.run_id).status == pb.RUN_STATUS_TERMINAL


async def test_an_interruption_is_unwrapped_from_a_task_group(url: str, observer: TapeClient) -> None:
    downstream = Downstream()
    with pytest.raises(RunParked) as raised:
        async with run_of(url) as run, asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(gate, "approve"))
    assert isinstance(raised.value.__cause__, BaseExceptionGroup)
    assert (await asyncio.to_thread(observer.get_run, run.run_id)).status == pb.RUN_STATUS_WAITING
    assert downstream.calls == []


def test_a_cancelled_run_begins_nothing_new_and_its_program_learns_of_it(url: str, observer: TapeClient) -> None:
    downstream = Downstream()
    with pytest.raises(RunCancelled), run_of(url) as run:  # noqa: PT012 - the end of the block raises
        observer.end_run(run_id=run.run_id, status=pb.RUN_STATUS_CANCELLED)
        swallowing_all(lambda: downstream.send("after"))
        swallowing_all(lambda: run.decide(lambda: downstream.think("after")))
    assert (downstream.calls, downstream.asked) == ([], [])
    assert observer.get_run(run.run_id).status == pb.RUN_STATUS_CANCELLED


def test_the_renewal_of_the_lease_learns_that_the_run_was_cancelled(url: str, observer: TapeClient) -> None:
    downstream = Downstream()
    with pytest.raises(RunCancelled), run_of(url, lease_ttl_ms=300) as run:  # noqa: PT012 - the end of the block raises
        observer.end_run(run_id=run.run_id, status=pb.RUN_STATUS_CANCELLED)
        wait_for(lambda: run._tape_call.run.interruption is not None, "the renewal to learn of it")
        swallowing_all(lambda: run.decide(lambda: downstream.think("after")))
    assert downstream.asked == []


def test_a_run_whose_lease_another_process_took_is_fenced(url: str, observer: TapeClient) -> None:
    downstream = Downstream()
    with pytest.raises(RunFenced, match="leased to 'other'"), run_of(url, lease_ttl_ms=1) as run:  # noqa: PT012 - the end of the block raises
        run._tape_call.run.lease.stop()  # type: ignore[union-attr]
        with TapeClient(url, lease_owner="other") as other:
            other.resume_run(run_id=run.run_id, lease_owner="other", lease_ttl_ms=60_000)
        swallowing(lambda: downstream.send("as a zombie"))
    assert downstream.calls == []
    assert observer.get_run(run.run_id).status == pb.RUN_STATUS_RUNNING


def test_an_effect_that_was_begun_before_its_run_parked_is_settled(url: str, observer: TapeClient) -> None:
    with TapeClient(url) as client:
        ids = {"app_name": "app", "user_id": "u", "session_id": "s", "invocation_id": "i"}
        run_id = client.begin_run(**ids).run_id
        client.begin_effect(run_id=run_id, decision_index=-1, tool_name="pay", custom_key="k")
        client.await_signal(run_id=run_id, gate_name="g")
        with pytest.raises(RunWaiting):
            client.begin_effect(run_id=run_id, decision_index=-1, tool_name="pay", custom_key="k2")
        with pytest.raises(RunWaiting):
            client.record_decision(run_id=run_id, decision_index=0)
        with pytest.raises(RunWaiting):
            client.end_run(run_id=run_id, status=pb.RUN_STATUS_TERMINAL)
        assert client.begin_effect(run_id=run_id, decision_index=-1, tool_name="pay", custom_key="k").existing
        client.register_compensation(run_id=run_id, effect_key="k", kind="refund")
        done = client.complete_effect(run_id=run_id, idempotency_key="k", status=pb.EFFECT_STATUS_CONFIRMED)
        assert done.status == pb.EFFECT_STATUS_CONFIRMED
        assert client.get_run(run_id).status == pb.RUN_STATUS_WAITING
        client.end_run(run_id=run_id, status=pb.RUN_STATUS_CANCELLED)
        with pytest.raises(RunCancelled):
            client.record_decision(run_id=run_id, decision_index=0)


@pytest.mark.parametrize("status", [pb.RUN_STATUS_TERMINAL, pb.RUN_STATUS_FAILED, pb.RUN_STATUS_STUCK])
def test_an_ended_run_decides_nothing_and_returns_what_it_has_decided(
    url: str, observer: TapeClient, status: pb.RunStatus
) -> None:
    ids = {"app_name": "app", "user_id": "u", "session_id": "s", "invocation_id": "i"}
    run_id = observer.begin_run(**ids).run_id
    observer.record_decision(run_id=run_id, decision_index=0, response_json='"kept"')
    observer.end_run(run_id=run_id, status=status)
    with pytest.raises(RunOver):
        observer.record_decision(run_id=run_id, decision_index=1)
    with pytest.raises(RunOver):
        observer.begin_effect(run_id=run_id, decision_index=-1, tool_name="pay")
    assert observer.record_decision(run_id=run_id, decision_index=0).response_json == '"kept"'


def test_an_outbox_effect_of_a_parked_run_owes_nothing(url: str, observer: TapeClient) -> None:
    def undo(**_: Any) -> None: ...

    @tape.effect(dispatch="outbox", connector="bank", compensate=undo)
    def transfer(amount: int) -> dict[str, int]:
        return {"amount": amount}

    with pytest.raises(RunParked), run_of(url) as run:  # noqa: PT012 - the end of the block raises
        with pytest.raises(RunParked):
            gate("approve")
        run._tape_call.run.interruption = None  # a program in another language keeps no such note
        swallowing_all(lambda: transfer(5))
    owed = observer.list_obligations(run_id=run.run_id).obligations
    assert [each.status for each in owed] in ([], [pb.OBLIGATION_STATUS_COMPENSATED])
    assert observer.list_effects_to_dispatch().effects == []


async def test_an_effect_that_happened_is_settled_although_its_task_is_cancelled(
    url: str, observer: TapeClient
) -> None:
    downstream = Downstream()

    async def pay_and_park() -> None:
        async with run_of(url), asyncio.TaskGroup() as group:
            group.create_task(downstream.send_later("paid"))
            group.create_task(asyncio.to_thread(gate, "approve"))

    with pytest.raises(RunParked):
        await pay_and_park()
    for run in (await asyncio.to_thread(observer.list_runs)).runs:
        await asyncio.to_thread(observer.send_signal, run_id=run.run_id, gate_name="approve", resolution_json="{}")
    await pay_and_park()
    assert downstream.calls == ["paid"]
