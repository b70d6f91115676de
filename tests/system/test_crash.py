"""kill -9 at any moment: every acknowledged append is there, once, without a gap, and provable."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import tempfile
from pathlib import Path

import msgspec
import pytest

from tape.client import AsyncTapeClient
from tape.errors import TapeError
from tape.journal.verifier import verify
from tape.model.entry import Draft
from tape.store import open_database
from tests.services import ServerProcess, difference

CALLERS = 24
BATCH_CALLERS = 4
MAX_BATCH = 40


class Load:
    """Callers that append without pause, one by one and in batches, and remember what was acknowledged.

    A reader follows them all the time and remembers what it got.
    """

    def __init__(self, url: str) -> None:
        self._client = AsyncTapeClient(url)
        self._ids = itertools.count()
        self.acknowledged: dict[int, int] = {}
        self.failures = 0
        self.followed: list[int] = []
        self._grew = asyncio.Event()
        self._tasks = [asyncio.create_task(self._call(f"run-{n}")) for n in range(CALLERS)]
        self._tasks += [asyncio.create_task(self._call_batches(f"batch-{n}")) for n in range(BATCH_CALLERS)]
        self._tasks.append(asyncio.create_task(self._follow()))

    async def _call(self, run_id: str) -> None:
        while True:
            number = next(self._ids)
            try:
                global_seq = await self._client.append("/tape/load/sent", {"id": number}, run_id=run_id)
            except TapeError:
                self.failures += 1
            else:
                self.acknowledged[number] = global_seq
                self._grew.set()

    async def _call_batches(self, run_id: str) -> None:
        sizes = random.Random(run_id)
        while True:
            numbers = [next(self._ids) for _ in range(sizes.randint(2, MAX_BATCH))]
            drafts = [
                Draft(subject="/tape/load/sent", payload_json=f'{{"id": {number}}}', run_id=run_id)
                for number in numbers
            ]
            try:
                global_seqs = await self._client.append_many(drafts)
            except TapeError:
                self.failures += 1
            else:
                self.acknowledged |= dict(zip(numbers, global_seqs, strict=True))
                self._grew.set()

    async def _follow(self) -> None:
        async for entry in self._client.follow():
            self.followed.append(entry.global_seq)
            self._grew.set()

    async def until_followed(self, global_seq: int) -> None:
        async with asyncio.timeout(120):
            while not self.followed or self.followed[-1] < global_seq:
                self._grew.clear()
                await self._grew.wait()

    async def until_acknowledged(self, count: int) -> None:
        async with asyncio.timeout(120):
            while len(self.acknowledged) < count:
                self._grew.clear()
                await self._grew.wait()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()


@pytest.mark.timeout(5_400)
@pytest.mark.parametrize("kills", [6, pytest.param(1_000, marks=pytest.mark.proof)])
async def test_a_loaded_server_killed_again_and_again_loses_and_repeats_nothing(store_url: str, kills: int) -> None:
    moments = random.Random(20_261_115)
    server = ServerProcess(store_url)
    server.start()
    listen = server.url.removeprefix("tape://")
    load = Load(server.url)
    try:
        for _ in range(kills):
            await load.until_acknowledged(len(load.acknowledged) + moments.randint(1, 100))
            server.kill()
            # It must start again as it is: a witness that is ahead of the database would demand --accept-loss.
            await asyncio.to_thread(server.start, listen)
        await load.until_acknowledged(len(load.acknowledged) + 100)
        await load.until_followed(max(load.acknowledged.values()))
    finally:
        await load.stop()
        server.kill()
    assert load.followed == list(range(1, len(load.followed) + 1)), "the reader missed, repeated or reordered entries"
    await prove(store_url, load.acknowledged)


async def test_a_stopping_server_finishes_its_commits_and_ends_streams_with_a_status(store_url: str) -> None:
    server = ServerProcess(store_url)
    server.start()
    load = Load(server.url)
    try:
        async with AsyncTapeClient(server.url) as client:
            stream = client.follow(reconnect=False)
            await anext(stream)
            await load.until_acknowledged(500)

            async def read_on() -> None:
                async for _ in stream:
                    pass

            reading = asyncio.create_task(read_on())
            assert await asyncio.to_thread(server.terminate) == 0
            with pytest.raises(TapeError, match="shutting down"):
                await reading
    finally:
        await load.stop()
        server.kill()
    await prove(store_url, load.acknowledged)


async def prove(store_url: str, acknowledged: dict[int, int]) -> None:
    """The journal holds every acknowledged append at the acknowledged global_seq, none twice, and verifies."""
    async with open_database(store_url) as database:
        report = await database.read(verify)
        assert report.ok, report.findings[:5]
        assert report.entries == report.head
        rows = await database.read(
            lambda reader: reader.query("SELECT global_seq, payload_json FROM tape_journal ORDER BY global_seq")
        )
    found = [(msgspec.json.decode(payload)["id"], global_seq) for global_seq, payload in rows]
    assert not difference((number for number, _ in found), dict(found)), "an append was carried out twice"
    lost = acknowledged.items() - dict(found).items()
    assert not lost, f"{len(lost)} acknowledged appends are not at their global_seq: {sorted(lost)[:10]}"


def test_the_memory_store_leaves_no_files_behind() -> None:
    with ServerProcess("memory") as server:
        assert memory_folders(server)
        assert server.terminate() == 0
        assert not memory_folders(server)
    with ServerProcess("memory") as killed:
        assert memory_folders(killed)
        killed.kill()
        with ServerProcess("memory"):
            assert not memory_folders(killed)


def memory_folders(server: ServerProcess) -> list[Path]:
    assert server.process is not None
    parent = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())
    return list(parent.glob(f"tape-memory-{server.process.pid}-*"))
