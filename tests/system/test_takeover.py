"""A killed server that is started again takes over the leases of its former process at once."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from tape.client import AsyncTapeClient
from tape.engine.reactions.matcher_partitions import (
    LEASE_MS,
    lease_partitions,
    read_leased,
    release_former_partitions,
)
from tape.store import Database, open_database
from tests.engine.reactions.helpers import matched, register, sources, until
from tests.services import ServerProcess, difference
from tests.system.test_reactions import lanes

# What a restart may add to the time of a reaction; the lease of a partition lasts 10 s.
TAKEOVER_S = 2.0


@pytest.mark.timeout(300)
async def test_reactions_go_on_at_once_when_a_killed_server_is_started_again(store_url: str) -> None:
    server = ServerProcess(store_url)
    server.start()
    listen = server.url.removeprefix("tape://")
    waits = []
    try:
        async with AsyncTapeClient(server.url) as client:
            await register(client)
            for number in range(1, 4):
                await matched(client, await client.append("/tape/order/paid"))
                server.kill()
                await asyncio.to_thread(server.start, listen)
                started = time.monotonic()
                await matched(client, await client.append("/tape/order/paid"))
                waits.append(time.monotonic() - started)
                assert len(await sources(client)) == 2 * number
    finally:
        server.kill()
    # One slow start is the machine's; a wait for leases would be 10 s in each.
    assert sorted(waits)[1] < TAKEOVER_S, waits


@pytest.mark.timeout(300)
async def test_a_stopped_process_whose_server_was_started_elsewhere_fires_nothing_twice(store_url: str) -> None:
    with ServerProcess(store_url, "--server-id", "orders") as former:
        async with AsyncTapeClient(former.url) as client:
            await register(client)
            await matched(client, await client.append("/tape/order/paid"))
        assert former.process is not None
        former.process.send_signal(signal.SIGSTOP)
        try:
            with ServerProcess(store_url, "--server-id", "orders") as server:
                async with AsyncTapeClient(server.url) as client:
                    started = time.monotonic()
                    last = [await client.append("/tape/order/paid") for _ in range(20)][-1]
                    await matched(client, last)
                    assert time.monotonic() - started < LEASE_MS / 1_000
                    former.process.send_signal(signal.SIGCONT)
                    async with AsyncTapeClient(former.url) as ghost:
                        for one in (ghost, client) * 20:
                            last = await one.append("/tape/order/paid")

                    async def both_have_partitions() -> bool:
                        return lanes(former) == 8 and lanes(server) == 8

                    await until(both_have_partitions, "the two processes to share the partitions as two servers")
                    async with AsyncTapeClient(former.url) as ghost:
                        for one in (ghost, client) * 20:
                            last = await one.append("/tape/order/paid")
                    await matched(client, last)
                    found = await sources(client)
        finally:
            former.process.send_signal(signal.SIGCONT)
    async with open_database(store_url) as database:
        rows = await database.read(
            lambda reader: reader.query("SELECT global_seq FROM tape_journal WHERE kind = 'order'")
        )
    assert not difference(found, (row[0] for row in rows))
    assert len(found) == 101


async def partitions_of(database: Database, owner: str) -> int:
    return len((await database.write(lambda tx: read_leased(tx, owner))).positions)


async def test_only_leases_of_the_same_server_are_taken_over(database: Database) -> None:
    for owner in ("host/a:1#1", "host/a:11#1", "host-7-abc"):
        await database.write(lambda tx, owner=owner: lease_partitions(tx, owner))
    for owner in ("host/a:1#1", "host/a:11#1", "host-7-abc", "host/a:1#1"):  # until each has its share
        await database.write(lambda tx, owner=owner: lease_partitions(tx, owner))
    before = [await partitions_of(database, owner) for owner in ("host/a:1#1", "host/a:11#1", "host-7-abc")]
    assert sum(before) == 16
    assert await database.write(lambda tx: release_former_partitions(tx, "host-7-def")) == 0
    assert await database.write(lambda tx: release_former_partitions(tx, "host/a:1#1")) == 0
    assert await database.write(lambda tx: release_former_partitions(tx, "host/a:1#2")) == before[0]
    after = [await partitions_of(database, owner) for owner in ("host/a:1#1", "host/a:11#1", "host-7-abc")]
    assert after == [0, *before[1:]]
