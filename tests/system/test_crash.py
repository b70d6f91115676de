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
from tape.store import open_database
from tests.services import ServerProcess, difference

CALLERS = 24


class Load:
    """Callers that append without pause and remember what was acknowledged."""

    def __init__(self, url: str) -> None:
        self._client = AsyncTapeClient(url)
        self._ids = itertools.count()
        self.acknowledged: dict[int, int] = {}
        self.failures = 0
        self._grew = asyncio.Event()
        self._tasks = [asyncio.create_task(self._call(f"run-{n}")) for n in range(CALLERS)]

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


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [6, pytest.param(50, marks=pytest.mark.proof)])
async def test_a_loaded_server_killed_again_and_again_loses_and_repeats_nothing(store_url: str, kills: int) -> None:
    moments = random.Random(20_261_115)
    server = ServerProcess(store_url)
    server.start()
    listen = server.url.removeprefix("tape://")
    load = Load(server.url)
    try:
        for _ in range(kills):
            await load.until_acknowledged(len(load.acknowledged) + moments.randint(1, 300))
            server.kill()
            await asyncio.to_thread(server.start, listen)
        await load.until_acknowledged(len(load.acknowledged) + 100)
    finally:
        await load.stop()
        server.kill()
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
