"""Reactions with everything killed at the worst moment: each entry becomes its work exactly once."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import urllib.request
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from tape.client import AsyncTapeClient
from tape.errors import ServerUnreachable, TapeError
from tape.reactions import Envelope
from tape.reactions import dispatcher as reactions
from tape.store import open_database
from tests.engine.reactions.helpers import AGENT, DONE, Dispatcher, matched, register, tasks, until
from tests.forked import Forked
from tests.services import ServerProcess, difference

KILLS = 12
REACTIONS = {
    "plain": {},
    "sharded": {"num_shards": 5},
    "picky": {"predicate_cel": "payload.n % 3 == 0"},
    "late": {"backfill": True},
    "agent": {"handler_kind": AGENT, "agent_app": "a"},
}


class Load:
    """Callers that append without pause, over any number of servers, and remember what was acknowledged."""

    def __init__(self, *urls: str) -> None:
        self._clients = [AsyncTapeClient(url) for url in urls]
        self.acknowledged = 0
        self._tasks = [asyncio.create_task(self._call(n)) for n in range(8)]

    async def _call(self, number: int) -> None:
        client = self._clients[number % len(self._clients)]
        while True:
            with contextlib.suppress(TapeError):
                await client.append(f"/tape/order/paid/{number}", {"n": self.acknowledged}, run_id=f"run-{number}")
                self.acknowledged += 1

    async def until(self, more: int) -> None:
        goal = self.acknowledged + more

        async def is_enough() -> bool:
            return self.acknowledged >= goal

        await until(is_enough, f"{goal} appends")

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self._clients:
            await client.close()


async def prove(store_url: str) -> int:
    """Every entry on an order is a task of each reaction that wants it, once; the number of entries."""
    async with open_database(store_url) as database:
        rows = await database.read(
            lambda reader: reader.query(
                "SELECT global_seq, payload_json FROM tape_journal WHERE kind = 'order' ORDER BY global_seq"
            )
        )
        made = await database.read(lambda reader: reader.query("SELECT reaction_id, source_global_seq FROM tape_tasks"))
        runs = await database.read(lambda reader: reader.query("SELECT invocation_id FROM tape_runs"))
    entries = [seq for seq, _ in rows]
    picky = [seq for seq, payload in rows if int(re.findall(r"\d+", payload)[0]) % 3 == 0]
    for reaction_id, wanted in {"plain": entries, "sharded": entries, "late": entries, "picky": picky}.items():
        assert not difference((seq for each, seq in made if each == reaction_id), wanted), reaction_id
    assert not difference((row[0] for row in runs), (f"react-agent-{seq}" for seq in entries))
    return len(entries)


@pytest.mark.timeout(300)
async def test_a_server_killed_again_and_again_makes_everything_once(store_url: str) -> None:
    moments = random.Random(20_261_116)
    server = ServerProcess(store_url)
    server.start()
    listen = server.url.removeprefix("tape://")
    async with AsyncTapeClient(server.url) as client:
        for reaction_id, fields in REACTIONS.items():
            await register(client, reaction_id, **fields)
        load = Load(server.url)
        try:
            for _ in range(KILLS):
                await load.until(moments.randint(1, 150))
                server.kill()
                await asyncio.to_thread(server.start, listen)
            await load.until(50)
        finally:
            await load.stop()
        await until_matched(client)
    server.kill()
    assert await prove(store_url) > KILLS


async def until_matched(client: AsyncTapeClient) -> None:
    async def is_over() -> bool:
        with contextlib.suppress(ServerUnreachable):  # a connection that was lost with a server comes back later
            # Agents begin runs, which are entries too: the head moves while they are matched.
            for _ in range(3):
                await matched(client)
            return True
        return False

    await until(is_over, "everything to be matched", 240)


@pytest.mark.timeout(300)
async def test_a_server_killed_between_an_event_and_its_handler_loses_and_repeats_no_task(store_url: str) -> None:
    """One event at a time, so that it is matched and claimed in the transaction that appends it."""
    moments = random.Random(20_261_118)
    handled: Counter[int] = Counter()

    async def handle(envelope: Envelope) -> None:
        handled[envelope.global_seq] += 1

    async def append() -> None:
        nonlocal acknowledged
        while not is_over.is_set():
            await client.append("/tape/order/paid/1", run_id="run")
            acknowledged += 1
            await asyncio.sleep(moments.choice([0, 0.002, 0.01]))

    server = ServerProcess(store_url)
    server.start()
    listen = server.url.removeprefix("tape://")
    acknowledged = 0
    is_over = asyncio.Event()
    async with AsyncTapeClient(server.url) as client:
        await register(client)
        # Tasks that were claimed and not delivered come again when this lease expires.
        dispatcher = reactions.Dispatcher(client, owner="w", lease_ms=1_000)
        dispatcher.add("r", handle, max_concurrency=1_000)
        running = asyncio.create_task(dispatcher.run())
        load = asyncio.create_task(append())
        for _ in range(KILLS // 2):
            goal = acknowledged + moments.randint(1, 40)
            await until_true(lambda goal=goal: acknowledged >= goal)  # type: ignore[misc]
            await asyncio.sleep(moments.random() * 0.01)
            server.kill()
            await asyncio.to_thread(server.start, listen)
        is_over.set()
        await load
        await until_matched(client)
        entries = range(1, (await client.head()).global_seq + 1)

        async def all_are_done() -> bool:  # a report that died with a server leaves its task to be redelivered
            return {task.status for task in await tasks(client)} == {DONE} and len(handled) == len(entries)

        await until(all_are_done, "every task to be done")
        dispatcher.stop()
        await running
        done = await tasks(client)
        assert [task.source_global_seq for task in done] == list(entries)
        assert all(handled[task.source_global_seq] <= task.attempts for task in done)
        assert len(entries) == acknowledged
    server.kill()


async def until_true(condition: Callable[[], bool]) -> None:
    async def holds() -> bool:
        return condition()

    await until(holds, "the condition")


@pytest.mark.timeout(300)
async def test_two_servers_share_the_work_and_one_takes_over_when_the_other_is_killed(store_url: str) -> None:
    with ServerProcess(store_url) as one, ServerProcess(store_url) as other:
        async with AsyncTapeClient(one.url) as client:
            for reaction_id, fields in REACTIONS.items():
                await register(client, reaction_id, **fields)

            async def both_have_lanes() -> bool:
                return lanes(one) == 8 and lanes(other) == 8

            await until(both_have_lanes, "each server to have half of the lanes")
            load = Load(one.url, other.url)
            try:
                await load.until(400)
                other.kill()
                await load.until(200)
            finally:
                await load.stop()
            await until_matched(client)

            async def one_has_all() -> bool:
                return lanes(one) == 16

            await until(one_has_all, "the lanes of the one that was killed")
    assert await prove(store_url) >= 600


def lanes(server: ServerProcess) -> int:
    with urllib.request.urlopen(f"{server.http_url}/metrics", timeout=120) as response:
        found = re.search(r"^tape_reaction_lanes (\S+)$", response.read().decode(), re.MULTILINE)
    return int(float(found[1])) if found else 0


HOLDER = """
import asyncio, sys
from tape.client import AsyncTapeClient
from tape.proto import tape_pb2 as pb

async def hold(url):
    async def requests():
        yield pb.DispatchRequest(owner="doomed", reaction_ids=["r"], window=100, lease_ms=8000)
        await asyncio.Event().wait()
    held = 0
    async with AsyncTapeClient(url) as client:
        async for reply in client.dispatch_tasks(requests()):
            held += len(reply.tasks)
            if held == 100:
                print("holding", flush=True)

asyncio.run(hold(sys.argv[1]))
"""


async def test_a_dispatcher_killed_with_a_hundred_tasks_loses_none(store_url: str) -> None:
    with ServerProcess(store_url) as server:
        async with AsyncTapeClient(server.url) as client:
            await register(client)
            for number in range(100):
                await client.append(f"/tape/order/paid/{number}")
            doomed = Forked([server.url], program=partial(exec, HOLDER, {}))
            assert doomed.stdout is not None
            assert await asyncio.to_thread(doomed.stdout.readline) == "holding\n"
            doomed.kill()
            heir = Dispatcher(client, "heir", ["r"], window=100)
            await heir.until(lambda d: len(d.tasks) == 100, "all tasks again")
            assert {task.attempts for task in heir.tasks} == {2}
            heir.say(completed=[task.task_id for task in heir.tasks])
            await heir.close()
            assert len(await tasks(client, status=DONE)) == 100
