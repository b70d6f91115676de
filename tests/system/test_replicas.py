"""Several servers on one database: one order, without a gap, for every reader."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from tape.client import AsyncTapeClient
from tape.journal.verifier import verify
from tape.store import open_database
from tests.services import ServerProcess

PER_WRITER = 300


@pytest.mark.parametrize("servers", [3])
async def test_three_servers_under_concurrent_writers_show_one_gapless_journal(store_url: str, servers: int) -> None:
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(ServerProcess(store_url)) for _ in range(servers)]
        clients = [AsyncTapeClient(process.url) for process in processes]
        total = servers * 8 * PER_WRITER

        async def write(client: AsyncTapeClient, run_id: str) -> list[int]:
            return [await client.append("/tape/load/sent", {"n": n}, run_id=run_id) for n in range(PER_WRITER)]

        async def read(client: AsyncTapeClient) -> list[int]:
            seen: list[int] = []
            async for entry in client.follow():
                seen.append(entry.global_seq)
                assert entry.global_seq == len(seen), "a reader saw a hole, a repeat or a step back"
                if len(seen) == total:
                    return seen
            raise AssertionError("the stream ended")

        readers = [asyncio.create_task(read(client)) for client in clients]
        # Each run is written to through all servers in turn: its seq must still have no gap.
        writers = [write(clients[n % servers], f"run-{n // servers}") for n in range(servers * 8)]
        numbers = await asyncio.gather(*writers)
        assert sorted(number for some in numbers for number in some) == list(range(1, total + 1))
        for mine in numbers:
            assert mine == sorted(mine)
        async with asyncio.timeout(120):
            await asyncio.gather(*readers)
        for client in clients:
            await client.close()
    async with open_database(store_url) as database:
        assert (await database.read(verify)).ok
        gaps = await database.read(
            lambda reader: reader.query(
                "SELECT run_id FROM tape_journal GROUP BY run_id HAVING max(seq) <> count(*) OR min(seq) <> 1"
            )
        )
        assert gaps == []


async def test_a_second_server_on_one_file_is_heard_within_the_poll(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'tape.db'}"
    with ServerProcess(store) as one, ServerProcess(store) as other:
        async with AsyncTapeClient(one.url) as reader, AsyncTapeClient(other.url) as writer:
            stream = reader.follow(from_global_seq=-1)
            waiting = asyncio.ensure_future(anext(stream))
            async with asyncio.timeout(120):
                while not waiting.done():
                    await writer.append("/tape/a/b")
                    await asyncio.wait([waiting], timeout=0.3)
            assert waiting.result().subject == "/tape/a/b"
            await stream.aclose()
