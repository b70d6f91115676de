"""Timers that the server fires, and durable sleep, on both databases."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tape.client import AsyncTapeClient
from tape.errors import IllegalTransition, InvalidInput
from tape.proto import tape_pb2 as pb
from tape.server.server import Server
from tests.server.test_gates import begin, entries, until_status


@pytest.fixture
async def client(server: Server) -> AsyncIterator[AsyncTapeClient]:
    async with AsyncTapeClient(f"tape://{server.grpc_address}", transport="grpc") as client:
        yield client


async def timer_entries(client: AsyncTapeClient, verb: str) -> list[dict[str, Any]]:
    return [payload for found, payload in await entries(client, "/tape/timer/**") if found == verb]


async def until_fired(client: AsyncTapeClient, count: int = 1) -> list[dict[str, Any]]:
    async with asyncio.timeout(20):
        while len(fired := await timer_entries(client, "fired")) < count:
            await asyncio.sleep(0.01)
    return fired


async def test_wake_makes_a_parked_run_runnable_and_clients_still_see_the_timer(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    await client.set_timer(run_id=run_id, timer_id="t", fire_at_ms=int(time.time() * 1_000) + 100, kind="wake")
    await client.await_signal(run_id=run_id, gate_name="g")
    await until_status(client, run_id, pb.RUN_STATUS_RUNNABLE)
    [fired] = await until_fired(client)
    assert (fired["timer_id"], fired["kind"], fired["outcome"]) == ("t", "wake", "woken")
    [seen] = (await client.list_due_timers(claim=True)).timers
    assert (seen.timer_id, seen.server_fired_at_ms > 0) == ("t", True)
    assert not (await client.list_due_timers()).timers


async def test_a_wake_that_comes_before_the_run_parks_is_not_lost(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    await client.set_timer(run_id=run_id, timer_id="t", fire_at_ms=1, kind="wake")
    await client.set_timer(run_id=run_id, timer_id="after", fire_at_ms=2, kind="reconcile")
    await until_fired(client)
    await client.await_signal(run_id=run_id, gate_name="g")
    await until_status(client, run_id, pb.RUN_STATUS_RUNNABLE)


async def test_a_gate_timeout_that_a_client_has_claimed_still_times_the_gate_out(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    due = int(time.time() * 1_000) + 200
    await client.set_timer(run_id=run_id, fire_at_ms=due, kind="gate_timeout", payload_json='{"gate":"g"}')
    await client.await_signal(run_id=run_id, gate_name="g")
    await client.list_due_timers(claim=True, now_ms=1 << 50)
    await until_status(client, run_id, pb.RUN_STATUS_RUNNABLE)
    answer = await client.await_signal(run_id=run_id, gate_name="g")
    assert (answer.timed_out, json.loads(answer.resolution_json)["approved"]) == (True, False)


async def test_a_gate_timeout_without_a_name_means_the_gate_that_the_run_waits_at(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    await client.await_signal(run_id=run_id, gate_name="g")
    await client.set_timer(run_id=run_id, fire_at_ms=1, kind="gate_timeout", payload_json="[[")
    assert (await until_status(client, run_id, pb.RUN_STATUS_RUNNABLE)).gates[0].answered_by == "timeout"


async def test_timers_of_other_kinds_are_left_to_their_clients(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    await client.set_timer(run_id=run_id, timer_id="mine", fire_at_ms=1, kind="mine")
    await client.set_timer(run_id=run_id, timer_id="r", fire_at_ms=1, kind="reconcile")
    [fired] = await until_fired(client)
    assert (fired["kind"], fired["outcome"]) == ("reconcile", "reported")
    assert {timer.timer_id for timer in (await client.list_due_timers()).timers} == {"mine", "r"}
    assert [payload["kind"] for payload in await timer_entries(client, "set")] == ["reconcile"]


async def test_a_cancelled_timer_does_not_fire(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    await client.set_timer(run_id=run_id, timer_id="t", fire_at_ms=1 << 50, kind="wake")
    assert (await client.cancel_timer(run_id=run_id, timer_id="t")).cancelled
    await client.set_timer(run_id=run_id, timer_id="other", fire_at_ms=1, kind="reconcile")
    [fired] = await until_fired(client)
    assert fired["timer_id"] == "other"
    assert [payload["timer_id"] for payload in await timer_entries(client, "cancelled")] == ["t"]


async def test_timers_of_an_ended_run_do_nothing(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    await client.set_timer(run_id=run_id, fire_at_ms=int(time.time() * 1_000) + 100, kind="wake")
    await client.end_run(run_id=run_id)
    [fired] = await until_fired(client)
    assert fired["outcome"] == "over"
    assert (await client.get_run(run_id)).status == pb.RUN_STATUS_TERMINAL


async def test_a_hundred_and_one_timers_fire_once_each(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    due = int(time.time() * 1_000) + 200
    names = [f"t{number}" for number in range(101)]
    await asyncio.gather(
        *(client.set_timer(run_id=run_id, timer_id=name, fire_at_ms=due, kind="reconcile") for name in names)
    )
    fired = await until_fired(client, 101)
    assert sorted(payload["timer_id"] for payload in fired) == sorted(names)


# ── sleep ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_sleeping_run_is_parked_until_its_time(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    first = await client.sleep_run(run_id=run_id, timer_id="s", duration_ms=300)
    again = await client.sleep_run(run_id=run_id, timer_id="s", duration_ms=3_000_000)
    assert (first.done, again.wake_at_ms) == (False, first.wake_at_ms)
    run = await client.get_run(run_id)
    assert (run.status, run.waiting_on_gate) == (pb.RUN_STATUS_WAITING, "timer:s")
    await until_status(client, run_id, pb.RUN_STATUS_RUNNABLE)
    assert int(time.time() * 1_000) >= first.wake_at_ms
    assert (await client.sleep_run(run_id=run_id, timer_id="s", duration_ms=300)).done


async def test_impossible_sleeps_are_refused(client: AsyncTapeClient) -> None:
    run_id = await begin(client)
    for timer_id, duration in (("", 5), ("s", 0), ("s", -1), ("s", 1 << 62)):
        with pytest.raises(InvalidInput):
            await client.sleep_run(run_id=run_id, timer_id=timer_id, duration_ms=duration)
    await client.end_run(run_id=run_id)
    with pytest.raises(IllegalTransition, match="cannot sleep"):
        await client.sleep_run(run_id=run_id, timer_id="s", duration_ms=5)
