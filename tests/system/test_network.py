"""The network fails between a server and its database, and between a client and its server: all heal by themselves."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tape.client import AsyncTapeClient
from tape.errors import TapeError
from tests.proxy import FaultProxy, Network
from tests.services import Postgres, ServerProcess
from tests.system.test_crash import prove

CALLERS = 8
FAULT_S = 2.0
# How long nothing may be acknowledged, or arrive at a reader, once the network is well again.
MAX_STALL_S = 10.0
FAULTS: tuple[Network, ...] = ("refuses", "black hole", "half open", "deaf")


class Traffic:
    """Callers that append without pause through one client, and a reader of another; when each last got something."""

    def __init__(self, writer: AsyncTapeClient, reader: AsyncTapeClient) -> None:
        self._writer, self._reader = writer, reader
        self._ids = itertools.count()
        self.acknowledged: dict[int, int] = {}
        self.followed: list[int] = []
        self.last_acknowledged = self.last_followed = time.monotonic()

    async def call(self, run_id: str) -> None:
        while True:
            number, request_id = next(self._ids), ""
            while True:
                try:
                    subject, payload = "/tape/load/sent", {"id": number}
                    global_seq = await self._writer.append(subject, payload, run_id=run_id, request_id=request_id)
                except TapeError as error:  # a caller's own retry, as documented
                    request_id = error.request_id or request_id
                else:
                    break
            self.acknowledged[number] = global_seq
            self.last_acknowledged = time.monotonic()

    async def follow(self) -> None:
        async for entry in self._reader.follow():
            self.followed.append(entry.global_seq)
            self.last_followed = time.monotonic()

    async def until_both_go_on(self) -> tuple[float, float]:
        """Seconds until the next append is acknowledged, and until the reader has that entry."""
        began, known = time.monotonic(), len(self.acknowledged)
        async with asyncio.timeout(120):
            while len(self.acknowledged) <= known:
                await asyncio.sleep(0.01)
            written = time.monotonic() - began
            wanted = max(self.acknowledged.values())
            while not self.followed or self.followed[-1] < wanted:
                await asyncio.sleep(0.01)
        return written, time.monotonic() - began


@asynccontextmanager
async def traffic(writer_url: str, reader_url: str) -> AsyncIterator[Traffic]:
    async with AsyncTapeClient(writer_url) as writer, AsyncTapeClient(reader_url) as reader:
        found = Traffic(writer, reader)
        tasks = [asyncio.create_task(found.call(f"run-{number}")) for number in range(CALLERS)]
        tasks.append(asyncio.create_task(found.follow()))
        try:
            yield found
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def socket_of(url: str) -> Path:
    """The Unix socket of a PostgreSQL URL."""
    return Path(parse_qs(urlsplit(url).query)["host"][0]) / ".s.PGSQL.5432"


def through(proxy: FaultProxy, url: str) -> str:
    """The same database, reached through the proxy."""
    parts = urlsplit(url)
    return f"postgresql://{parts.username}@{proxy.address}{parts.path}"


async def suffer(proxy: FaultProxy, found: Traffic, fault: Network) -> None:
    """Let the network fail for a while, and check that everything goes on soon after it is well again."""
    await found.until_both_go_on()
    proxy.become(fault)
    await asyncio.sleep(FAULT_S)
    proxy.become("half open" if fault == "half open" else "passes")
    written, read = await found.until_both_go_on()
    assert max(written, read) < MAX_STALL_S, f"{fault}: appends stood still for {written:.1f} s, readers {read:.1f} s"


async def settle(found: Traffic) -> None:
    """Wait until the reader has everything that was acknowledged, and check that it has it once and in order."""
    await found.until_both_go_on()
    assert found.followed == list(range(1, len(found.followed) + 1))


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_server_outlives_the_network_to_its_database(postgres: Postgres, fault: Network) -> None:
    with postgres.migrated_database() as url, FaultProxy(socket_of(url)) as proxy:
        with ServerProcess(through(proxy, url)) as server:
            async with traffic(server.url, server.url) as found:
                await suffer(proxy, found, fault)
                await settle(found)
        await prove(url, found.acknowledged)


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_client_outlives_the_network_to_its_server(sqlite_url: str, fault: Network) -> None:
    with ServerProcess(sqlite_url) as server:
        host, port = re.findall(r"//(.+):(\d+)", server.url)[0]
        with FaultProxy((host, int(port))) as proxy:
            async with traffic(f"tape://{proxy.address}", f"tape://{proxy.address}") as found:
                await suffer(proxy, found, fault)
                await settle(found)
    await prove(sqlite_url, found.acknowledged)


async def test_a_slow_network_to_the_database_delays_and_loses_nothing(postgres: Postgres) -> None:
    with postgres.migrated_database() as url, FaultProxy(socket_of(url)) as proxy:
        with ServerProcess(through(proxy, url)) as server:
            async with traffic(server.url, server.url) as found:
                await found.until_both_go_on()
                proxy.become("passes", delay_s=0.1)
                written, read = await found.until_both_go_on()
                assert max(written, read) < MAX_STALL_S
                proxy.become("passes")
                await settle(found)
        await prove(url, found.acknowledged)
