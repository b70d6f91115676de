"""The store fails or is restarted while clients read: every entry comes once and in order, and no gap is reported."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import apsw
import pytest

import tape
from tape.model.entry import Draft
from tape.server.server import Server
from tape.store.sqlite import SqliteConnection, translate
from tests.conftest import settings_for
from tests.services import Postgres

ENTRIES = 6_000
READERS = 8
RESTARTS = 3
ADA = {"tenant": "shop", "user": "ada", "session": "s1"}


class Replays:
    """Readers of a server's HTTP stream that replay the whole journal again and again."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.gaps: list[tape.Gap] = []
        self.finished = 0
        self._tasks = [asyncio.create_task(self._replay()) for _ in range(READERS)]

    async def _replay(self) -> None:
        while True:
            target, numbers = self._server.hub.head, itertools.count(1)
            url = f"http://{self._server.http_address}"
            events = tape.stream(url, after=0, on_gap=self.gaps.append, **ADA)
            async for event in events:
                assert event.sequence == next(numbers)
                if event.sequence >= target:
                    break
            await events.aclose()  # type: ignore[attr-defined]
            assert next(numbers) > ENTRIES
            self.finished += 1

    async def wait_for(self, count: int) -> None:
        """Wait until so many more replays have ended."""
        wanted = self.finished + count
        async with asyncio.timeout(240):
            while self.finished < wanted:
                for task in self._tasks:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def replay_through_outages(server: Server, outage: Callable[[], Awaitable[None]]) -> Replays:
    await server.journal.append([Draft(subject="/tape/order/created", **ADA) for _ in range(ENTRIES)])
    server.hub.ring.clear()
    replays = Replays(server)
    try:
        await replays.wait_for(1)
        for _ in range(RESTARTS):
            await outage()
            await replays.wait_for(READERS)
    finally:
        await replays.stop()
    return replays


@pytest.mark.timeout(600)
async def test_a_restart_of_postgresql_is_no_gap_for_those_who_replay() -> None:
    with Postgres() as postgres:

        async def restart() -> None:
            await asyncio.to_thread(postgres.stop)
            await asyncio.to_thread(postgres.start)

        async with Server(settings_for(postgres.url(), max_subscribers_per_session=100)) as server:
            replays = await replay_through_outages(server, restart)
            assert replays.gaps == []
            assert server.metrics.read_retries._value.get() > 0


@pytest.mark.timeout(600)
async def test_a_disk_that_fails_for_a_while_is_no_gap_for_those_who_replay(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Server(settings_for(sqlite_url, max_subscribers_per_session=100)) as server:

        async def fail() -> None:
            before = server.metrics.read_retries._value.get()

            def query(self: SqliteConnection, sql: str, *params: Any) -> list[Any]:
                raise translate(apsw.exception_for(apsw.SQLITE_IOERR_READ), self.path)

            with monkeypatch.context() as outage:
                outage.setattr(SqliteConnection, "query", query)
                async with asyncio.timeout(60):
                    while server.metrics.read_retries._value.get() < before + READERS:
                        await asyncio.sleep(0.01)

        assert (await replay_through_outages(server, fail)).gaps == []
