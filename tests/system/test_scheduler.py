"""What is due is done once: across a kill -9 between its time and its firing, and by two servers of one database."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

from tape.client import AsyncTapeClient
from tape.proto import tape_pb2 as pb
from tests.server.test_gates import begin, entries, until_status
from tests.services import Postgres, ServerProcess


def now_ms() -> int:
    return int(time.time() * 1_000)


@pytest.mark.timeout(120)
async def test_what_came_due_while_no_server_ran_is_done_once_by_the_next_one(store_url: str) -> None:
    with ServerProcess(store_url) as server:
        async with AsyncTapeClient(server.url) as client:
            timed, asleep, reminded = [await begin(client, name) for name in ("timed", "asleep", "reminded")]
            await client.await_signal(run_id=timed, gate_name="g", timeout_ms=1_000)
            await client.await_signal(run_id=reminded, gate_name="g", remind_after_ms=1_000)
            due = (await client.sleep_run(run_id=asleep, timer_id="s", duration_ms=1_000)).wake_at_ms
        server.kill()
        assert now_ms() < due, "the machine was too slow for this test"
        async with asyncio.timeout(20):
            while now_ms() <= due:
                await asyncio.sleep(0.01)
        await asyncio.to_thread(server.start)
        async with AsyncTapeClient(server.url) as client:
            await until_status(client, timed, pb.RUN_STATUS_RUNNABLE)
            await until_status(client, asleep, pb.RUN_STATUS_RUNNABLE)
            async with asyncio.timeout(20):
                while not (await client.get_run(reminded)).gates[0].reminded_at_ms:
                    await asyncio.sleep(0.01)
            verbs = Counter(verb for verb, _ in await entries(client))
            assert verbs == {"waiting": 2, "released": 1, "reminded": 1}
            assert [verb for verb, _ in await entries(client, "/tape/timer/**")] == ["set", "fired"]
            assert (await client.get_run(reminded)).status == pb.RUN_STATUS_WAITING


@pytest.mark.timeout(120)
async def test_two_servers_of_one_database_fire_each_timer_once(postgres: Postgres) -> None:
    with postgres.migrated_database() as url, ServerProcess(url) as first, ServerProcess(url) as second:
        async with AsyncTapeClient(first.url) as one, AsyncTapeClient(second.url) as two:
            runs = [await begin(client, f"{number}") for number, client in enumerate([one, two] * 10)]
            due = now_ms() + 1_000
            await asyncio.gather(
                *(
                    client.set_timer(run_id=run, timer_id=name, fire_at_ms=due, kind="reconcile")
                    for run in runs
                    for name, client in (("a", one), ("b", two))
                ),
                *(one.await_signal(run_id=run, gate_name="g", timeout_ms=1_000, remind_after_ms=500) for run in runs),
            )
            for run in runs:
                await until_status(two, run, pb.RUN_STATUS_RUNNABLE)
            async with asyncio.timeout(30):
                while len(fired := await fired_timers(one)) < 40:
                    await asyncio.sleep(0.05)
            assert set(fired.values()) == {1}
            assert len(fired) == 40
            released = Counter(payload["run_id"] for verb, payload in await entries(two) if verb == "released")
            assert released == dict.fromkeys(runs, 1)


async def fired_timers(client: AsyncTapeClient) -> Counter[tuple[str, str]]:
    found = await entries(client, "/tape/timer/fired/**")
    return Counter((payload["run_id"], payload["timer_id"]) for _, payload in found)


@pytest.mark.proof  # waits for the next minute
@pytest.mark.timeout(180)
async def test_two_servers_begin_one_run_for_each_occurrence(postgres: Postgres) -> None:
    with postgres.migrated_database() as url, ServerProcess(url) as first, ServerProcess(url) as second:
        async with AsyncTapeClient(first.url) as one, AsyncTapeClient(second.url) as two:
            for number in range(5):
                await one.create_schedule(f"s{number}", "* * * * *", app_name=f"app{number}")
            async with asyncio.timeout(90):
                while sum(each.begun for each in (await two.list_schedules()).schedules) < 5:
                    await asyncio.sleep(0.1)
            begun = Counter(payload["schedule"] for _, payload in await entries(two, "/tape/schedule/fired/**"))
            assert begun == {f"s{number}": 1 for number in range(5)}
            assert len((await one.list_runs()).runs) == 5
