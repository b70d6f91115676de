"""kill -9 at any moment: every acknowledged append is there, once, without a gap, and provable."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import pytest

from tape.client import AsyncTapeClient
from tape.errors import TapeError
from tape.journal.verifier import verify
from tape.store import open_database
from tests.services import ServerProcess
from tests.system.kill_rounds import Load, compare, run_rounds

SLICE = 50


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("seed", "kills"), [(0, 6), *(pytest.param(seed, SLICE, marks=pytest.mark.proof) for seed in range(1, 21))]
)
async def test_a_loaded_server_killed_again_and_again_loses_and_repeats_nothing(
    store_url: str, seed: int, kills: int
) -> None:
    totals = await run_rounds(store_url, kills, seed)
    assert not totals.has_failed, totals
    assert totals.rounds == kills


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
    assert await compare(store_url, acknowledged) == (0, 0), "acknowledged appends are lost or repeated"


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
