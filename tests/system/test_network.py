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
from tests.web import call

CALLERS = 8
FAULT_S = 2.0
# How long nothing may be acknowledged, or arrive at a reader, once the network is well again.
MAX_STALL_S = 10.0
FAULTS: tuple[Network, ...] = ("refuses", "black hole", "half open", "deaf", "resets answers")


class Traffic:
    """Callers that append without pause through one client, and a reader of another; how long each got nothing."""

    _ids = itertools.count()

    def __init__(self, writer: AsyncTapeClient, reader: AsyncTapeClient) -> None:
        self._writer, self._reader = writer, reader
        self.acknowledged: dict[int, int] = {}
        self.followed: list[int] = []
        self.longest_pause_s = 0.0
        self._acknowledged_at = self._followed_at = time.monotonic()

    def begin_to_measure(self) -> None:
        """Forget the pauses of before."""
        self.longest_pause_s = 0.0
        self._acknowledged_at = self._followed_at = time.monotonic()

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
            now = time.monotonic()
            self.longest_pause_s = max(self.longest_pause_s, now - self._acknowledged_at)
            self._acknowledged_at = now

    async def follow(self) -> None:
        async for entry in self._reader.follow():
            self.followed.append(entry.global_seq)
            now = time.monotonic()
            self.longest_pause_s = max(self.longest_pause_s, now - self._followed_at)
            self._followed_at = now

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


async def status(server: ServerProcess, path: str) -> tuple[int, str]:
    answer = await call(server.http_url.removeprefix("http://"), "GET", path)
    return answer.status, answer.body.decode()


async def until_ready(server: ServerProcess, wanted: int) -> float:
    """Seconds until /readyz answers with a status."""
    began = time.monotonic()
    async with asyncio.timeout(120):
        while (await status(server, "/readyz"))[0] != wanted:
            await asyncio.sleep(0.1)
    return time.monotonic() - began


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("fault", "seconds"),
    [
        # Longer than PostgreSQL waits for a session that stands still inside of a transaction.
        *(("refuses", 2.0), ("black hole", 12.0), ("half open", 2.0), ("deaf", 12.0), ("resets answers", 2.0)),
        *(pytest.param(fault, 30.0, marks=pytest.mark.proof) for fault in FAULTS),
    ],
)
async def test_other_servers_go_on_while_one_loses_its_network_and_it_comes_back_without_a_restart(
    postgres: Postgres, fault: Network, seconds: float
) -> None:
    with postgres.migrated_database() as url, FaultProxy(socket_of(url)) as proxy:
        with ServerProcess(through(proxy, url)) as cut, ServerProcess(url) as other:
            async with traffic(cut.url, cut.url) as suffering, traffic(other.url, other.url) as well:
                await suffering.until_both_go_on()
                await well.until_both_go_on()
                well.begin_to_measure()
                # Callers commit all the time, so it fails inside of a transaction.
                proxy.become(fault)
                async with asyncio.timeout(120):
                    await asyncio.gather(
                        asyncio.sleep(seconds), *([] if fault == "half open" else [until_ready(cut, 503)])
                    )
                assert (await status(other, "/readyz"))[0] == 200
                proxy.become("half open" if fault == "half open" else "passes")
                written, read = await suffering.until_both_go_on()
                assert max(written, read) < MAX_STALL_S, f"{fault}: healed after {written:.1f} s and {read:.1f} s"
                assert await until_ready(cut, 200) < MAX_STALL_S
                await settle(suffering)
                await settle(well)
                assert well.longest_pause_s < MAX_STALL_S, f"the other server stood still: {well.longest_pause_s:.1f} s"
                metrics = (await status(cut, "/metrics"))[1]
                assert re.search(r"^tape_store_connects_total (?!1\.0)", metrics, re.MULTILINE)
                assert re.search(r"^tape_commit_failures_total{error=\"Store", metrics, re.MULTILINE)
        await prove(url, suffering.acknowledged | well.acknowledged)
