"""A server that is stopped under load keeps no other server of its database from writing."""

from __future__ import annotations

import asyncio
import contextlib
import signal

from tape.client import AsyncTapeClient
from tape.journal.verifier import verify
from tape.store import open_database
from tests.services import Postgres, ServerProcess

ROUNDS = 2
WRITERS = 32


async def test_the_other_servers_go_on_when_one_is_stopped_inside_of_a_transaction(postgres: Postgres) -> None:
    with postgres.migrated_database() as url:
        with ServerProcess(url) as stopped, ServerProcess(url) as other:
            async with AsyncTapeClient(stopped.url) as ghost, AsyncTapeClient(other.url) as client:
                acknowledged: list[int] = []

                async def flood() -> None:
                    with contextlib.suppress(Exception):  # the server under it is stopped
                        while True:
                            acknowledged.append(await ghost.append("/tape/load/sent", {"n": 1}))

                assert stopped.process is not None
                for _ in range(ROUNDS):
                    writers = [asyncio.create_task(flood()) for _ in range(WRITERS)]
                    before = len(acknowledged)
                    try:
                        async with asyncio.timeout(60):
                            while len(acknowledged) < before + 200:
                                await asyncio.sleep(0.01)
                        stopped.process.send_signal(signal.SIGSTOP)
                        async with asyncio.timeout(60):  # it took two hours
                            acknowledged.append(await client.append("/tape/load/sent", {"n": 2}))
                    finally:
                        stopped.process.send_signal(signal.SIGCONT)
                        for writer in writers:
                            writer.cancel()
                        await asyncio.gather(*writers, return_exceptions=True)
                    async with asyncio.timeout(60):  # the server that was stopped writes again, without a restart
                        acknowledged.append(await ghost.append("/tape/load/sent", {"n": 3}))
        async with open_database(url) as database:
            assert (await database.read(verify)).ok
            rows = await database.read(lambda reader: reader.query("SELECT global_seq FROM tape_journal"))
        assert len(acknowledged) == len(set(acknowledged))
        assert set(acknowledged) <= {row[0] for row in rows}
