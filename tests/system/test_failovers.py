"""PostgreSQL is put back to an older state under running servers: numbers are never given out twice, readers know."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from tape.client import AsyncTapeClient
from tape.errors import TapeError
from tape.journal.epochs import read_epochs
from tape.journal.verifier import verify
from tape.model.entry import Entry
from tape.model.gap import JournalGap
from tape.store import open_database
from tests.services import Postgres, ServerProcess, wait_for

CALLERS = 6
MAX_LOST = 60


class Replica:
    """A copy of a database, taken and put in its place while servers are connected."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._name = parts.path.lstrip("/")
        self._admin = urlunsplit(parts._replace(path="/postgres"))

    def take(self) -> None:
        """Copy the database as it is now; connections are cut for that."""
        with self._closed() as admin:
            admin.execute(f"CREATE DATABASE {self._name}_copy TEMPLATE {self._name} STRATEGY file_copy")

    def put_back(self) -> None:
        """Put the copy in the place of the database."""
        with self._closed() as admin:
            admin.execute(f"DROP DATABASE {self._name} WITH (FORCE)")
            admin.execute(f"ALTER DATABASE {self._name}_copy RENAME TO {self._name}")

    @contextlib.contextmanager
    def _closed(self) -> Iterator[psycopg.Connection]:
        with psycopg.connect(self._admin, autocommit=True) as admin:
            admin.execute(f"ALTER DATABASE {self._name} ALLOW_CONNECTIONS false")
            # One that has just been let in is not there yet when the others are ended.
            ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = %s"
            wait_for(lambda: admin.execute(ended, (self._name,)).fetchone() == (0,), "the end of all connections")
            yield admin
            admin.execute(f"ALTER DATABASE {self._name} ALLOW_CONNECTIONS true")


class Observer:
    """A server's clients: callers that append without pause, and a reader that goes on over named gaps."""

    _ids = itertools.count()

    def __init__(self, url: str) -> None:
        self._client = AsyncTapeClient(url)
        self.acknowledged: list[tuple[int, int]] = []  # number of the entry, id in its payload
        self.entries: list[Entry] = []
        self.gaps: list[JournalGap] = []
        self.tasks = [asyncio.create_task(self._call(f"run-{number}")) for number in range(CALLERS)]
        self.tasks.append(asyncio.create_task(self._follow()))

    async def _call(self, run_id: str) -> None:
        while True:
            number = next(self._ids)
            with contextlib.suppress(TapeError):
                global_seq = await self._client.append("/tape/load/sent", {"id": number}, run_id=run_id)
                self.acknowledged.append((global_seq, number))

    async def _follow(self) -> None:
        async for entry in self._client.follow(skip_gaps=True, on_gap=self.gaps.append):
            self.entries.append(entry)

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self._client.close()


async def until(condition: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)
            assert what


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("rounds", [2, pytest.param(100, marks=pytest.mark.proof)])
async def test_no_number_is_given_out_twice_and_every_reader_is_told(
    postgres: Postgres, servers: int, rounds: int
) -> None:
    chance = random.Random(servers)
    with postgres.migrated_database() as url, contextlib.ExitStack() as running:
        urls = [running.enter_context(ServerProcess(url)).url for _ in range(servers)]
        replica, observers = Replica(url), [Observer(each) for each in urls]
        try:
            for _ in range(rounds):
                await fail_over(replica, observers, chance)
            last = max(number for observer in observers for number, _ in observer.acknowledged)
            for observer in observers:
                await until(lambda o=observer: o.entries[-1].global_seq >= last, "the reader has everything")  # type: ignore[misc]
        finally:
            for observer in observers:
                await observer.close()
        check_numbers(observers)
        if servers == 1:
            check_runs(observers)
        await check_ranges(url, observers, rounds)


async def fail_over(replica: Replica, observers: list[Observer], chance: random.Random) -> None:
    """Lose a few acknowledged entries, and wait until every server writes again and every reader is told."""
    await asyncio.to_thread(replica.take)
    for observer in observers:
        wanted = len(observer.acknowledged) + chance.randint(1, MAX_LOST)
        await until(lambda o=observer, n=wanted: len(o.acknowledged) >= n, "appends go on after the copy")  # type: ignore[misc]
    told = [len(observer.gaps) for observer in observers]
    await asyncio.to_thread(replica.put_back)
    for observer, count in zip(observers, told, strict=True):
        wanted = len(observer.acknowledged) + CALLERS + 1  # what was in flight may be from before
        await until(lambda o=observer, n=wanted: len(o.acknowledged) >= n, "appends go on after the failover")  # type: ignore[misc]
        await until(lambda o=observer, n=count: len(o.gaps) > n, "the reader is told")  # type: ignore[misc]


def check_numbers(observers: list[Observer]) -> None:
    """A number stands for one entry, over all that was acknowledged and read anywhere."""
    by_number: dict[int, str] = {}
    for observer in observers:
        for entry in observer.entries:
            assert by_number.setdefault(entry.global_seq, entry.payload_json) == entry.payload_json
        numbers = [entry.global_seq for entry in observer.entries]
        assert numbers == sorted(set(numbers)), "a reader got entries twice or out of order"
    for observer in observers:
        for global_seq, number in observer.acknowledged:
            text = f'{{"id":{number}}}'
            assert by_number.setdefault(global_seq, text) == text, f"{global_seq} was given out twice"


def check_runs(observers: list[Observer]) -> None:
    """A seq of a run stands for one entry, over all that was read anywhere."""
    found: dict[tuple[str, int], int] = {}
    for observer in observers:
        for entry in observer.entries:
            assert found.setdefault((entry.run_id, entry.seq), entry.global_seq) == entry.global_seq


async def check_ranges(url: str, observers: list[Observer], rounds: int) -> None:
    """Every acknowledged entry is there, or in a named range, and each reader has it or was told so."""
    async with open_database(url) as database:
        assert (await database.read(verify)).ok
        epochs = await database.read(read_epochs)
        rows = await database.read(lambda reader: reader.query("SELECT global_seq FROM tape_journal"))
    present = {row[0] for row in rows}
    # Each server that knows more of the lost entries than the one before begins an epoch of its own.
    assert 0 < len(epochs) <= rounds * len(observers)
    acknowledged = {number for observer in observers for number, _ in observer.acknowledged}
    lost = sorted(acknowledged - present)
    assert lost, "the rounds lost nothing"
    for number in lost:
        assert any(epoch.cut_after < number < epoch.resumes_at for epoch in epochs), f"{number} is gone, not named"
    for observer in observers:
        read = {entry.global_seq for entry in observer.entries}
        ranges = [(gap.first, gap.last) for gap in observer.gaps]
        last = observer.entries[-1].global_seq
        for number in acknowledged - read:
            assert number > last or any(first <= number <= last for first, last in ranges), (
                f"a reader was not told of {number}"
            )
