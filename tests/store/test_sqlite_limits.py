"""A SQLite store on a small disk and with little memory: its log and its caches stay within their limits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import sleep
from typing import Any

import apsw
import pytest

from tape.base.telemetry.metrics import Metrics
from tape.journal.journal import Journal
from tape.journal.reader import EVERYTHING, SubjectCursor
from tape.model.entry import Draft
from tape.server.server import Server
from tape.store import Reader, SqliteLimits, open_database
from tape.store.checkpointer import Checkpointer
from tape.store.read_gate import HOLD_S, ReadGate
from tape.store.sqlite import SqliteDatabase
from tape.store.wal import WalMonitor
from tests.conftest import settings_for

MIB = 1 << 20


def pragma(connection: object, name: str) -> int:
    return int(connection.query(f"PRAGMA {name}")[0][0])  # type: ignore[attr-defined]


def wal_bytes(path: Path) -> int:
    return Path(f"{path}-wal").stat().st_size


@contextmanager
def open_snapshot(path: Path) -> Iterator[None]:
    """A reader of another program that keeps a transaction open."""
    with closing(apsw.Connection(str(path))) as other:
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM tape_journal").fetchall()
        yield


async def append(journal: Journal, count: int) -> None:
    payload = f'{{"x":"{"a" * 4_000}"}}'
    for _ in range(count // 10):
        await journal.append([Draft(subject="/tape/load/sent", payload_json=payload)] * 10)


@pytest.mark.parametrize(("readers", "mebibytes"), [(4, 64), (1, 2), (16, 8)])
def test_the_page_caches_of_all_connections_have_the_configured_size_together(
    sqlite_url: str, readers: int, mebibytes: int
) -> None:
    database = open_database(sqlite_url, readers=readers, sqlite_limits=SqliteLimits(cache_bytes=mebibytes * MIB))
    database.migrate()
    connections = [database.connect(), *(database.connect(read_only=True) for _ in range(readers))]
    caches = [-1_024 * pragma(connection, "cache_size") for connection in connections]
    for connection in connections:
        connection.close()
    assert caches[0] == mebibytes * MIB // 2
    assert sum(caches) == mebibytes * MIB


async def test_a_server_gives_its_settings_to_the_live_connections(sqlite_url: str) -> None:
    settings = settings_for(sqlite_url, sqlite_wal_bytes=5 * MIB, sqlite_cache_bytes=10 * MIB, readers=5)
    async with Server(settings) as server:
        names = ("cache_size", "journal_size_limit", "page_size")
        found = await server.database.read(lambda reader: [pragma(reader, name) for name in names])
        assert found == [-1_024, 5 * MIB, 4_096]
        found = await server.database.write(lambda tx: [pragma(tx, name) for name in names])
        assert found == [-5 * 1_024, 5 * MIB, 4_096]


async def test_the_log_stays_below_its_limit_while_readers_overlap(sqlite_url: str) -> None:
    limits = SqliteLimits(wal_bytes=4 * MIB)
    async with open_database(sqlite_url, sqlite_limits=limits, readers=4) as database:
        assert isinstance(database, SqliteDatabase)
        journal, is_over, sizes = Journal(database), False, [0]
        await append(journal, 1_000)

        async def read() -> None:
            while not is_over:
                await database.read(lambda reader: SubjectCursor(EVERYTHING).read(reader, 0))

        readers = [asyncio.create_task(read()) for _ in range(4)]
        for _ in range(100):
            await append(journal, 50)
            sizes.append(wal_bytes(database.path))
        is_over = True
        await asyncio.gather(*readers)
    assert 2 * MIB < max(sizes) < limits.wal_bytes
    assert database.metrics.wal_restarts.labels("starved")._value.get() == 0


NAP_S = 0.05


def add_naps(database: SqliteDatabase) -> None:
    """Give readers a function that takes its time, as every step of a statement does on a loaded machine."""

    def take_nap() -> int:
        sleep(NAP_S)
        return 1

    def add(connection: Any) -> None:
        connection._db.create_scalar_function("nap", take_nap)

    database.hooks.reader_connected.append(add)


def nap(reader: Reader, count: int) -> int:
    """Keep a snapshot for so many naps in one statement; returns how many entries it has read."""
    ((read,),) = reader.query("SELECT sum(one) FROM (SELECT nap() AS one FROM tape_journal LIMIT ?)", count)
    return int(read)


async def test_the_log_stays_below_its_limit_while_statements_are_slow(sqlite_url: str) -> None:
    limits = SqliteLimits(wal_bytes=4 * MIB)
    async with open_database(sqlite_url, sqlite_limits=limits, readers=4) as database:
        assert isinstance(database, SqliteDatabase)
        add_naps(database)
        journal, is_over, sizes, counts = Journal(database), False, [0], set()
        await append(journal, 50)

        async def read() -> None:
            while not is_over:
                counts.add(await database.read(lambda reader: nap(reader, 10)))

        readers = [asyncio.create_task(read()) for _ in range(4)]
        for _ in range(60):
            await append(journal, 50)
            sizes.append(wal_bytes(database.path))
        is_over = True
        await asyncio.gather(*readers)
    assert 2 * MIB < max(sizes) < limits.wal_bytes
    assert counts == {10}
    assert database.metrics.wal_restarts.labels("starved")._value.get() == 0
    assert database.metrics.wal_interrupted_reads._value.get() > 0


async def test_a_full_log_interrupts_a_statement_once_and_holds_up_appends_for_a_bounded_moment(
    sqlite_url: str,
) -> None:
    async with open_database(sqlite_url, sqlite_limits=SqliteLimits(wal_bytes=MIB), readers=2) as database:
        assert isinstance(database, SqliteDatabase)
        add_naps(database)
        journal, restarts = Journal(database), database.metrics.wal_restarts
        await append(journal, 100)
        reading = asyncio.create_task(database.read(lambda reader: nap(reader, int(3 * HOLD_S / NAP_S))))
        async with asyncio.timeout(60):
            while restarts.labels("starved")._value.get() == 0:  # the second time, the statement is left alone
                await append(journal, 10)
        assert not reading.done()
        await append(journal, 10)
        assert await database.read(lambda reader: nap(reader, 1)) == 1
        assert not reading.done()
        assert await reading == int(3 * HOLD_S / NAP_S)
        assert database.metrics.wal_interrupted_reads._value.get() == 1


async def test_a_snapshot_that_stays_open_delays_no_append_for_long_and_is_reported(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    limits = SqliteLimits(wal_bytes=MIB)
    async with open_database(sqlite_url, sqlite_limits=limits) as database:
        assert isinstance(database, SqliteDatabase)
        journal = Journal(database)
        await append(journal, 10)
        monitor = WalMonitor(Path(f"{database.path}-wal"), limits.wal_bytes, database.metrics, database._truncate_wal)
        with open_snapshot(database.path):
            async with asyncio.timeout(60):
                await append(journal, 2_000)
            assert wal_bytes(database.path) > 4 * MIB
            await monitor.check()
            await monitor.check()  # too soon after the first: writers are not held up again
            starved = database.metrics.wal_restarts.labels("starved")._value.get()
            assert 2 <= starved < 20
            assert database.metrics.wal_bytes._value.get() > 4 * MIB
            (line,) = [record.message for record in caplog.records if "read transaction open" in record.message]
            assert "sqlite_wal_bytes is 1048576" in line
        monitor._due_at = 0.0
        await monitor.check()
        assert wal_bytes(database.path) == database.metrics.wal_bytes._value.get() == 0


async def test_a_server_empties_a_log_that_a_snapshot_kept_without_a_further_append(sqlite_url: str) -> None:
    async with Server(settings_for(sqlite_url, sqlite_wal_bytes=MIB)) as server:
        assert isinstance(server.database, SqliteDatabase)
        path = server.database.path
        await append(server.journal, 10)
        with open_snapshot(path):
            await append(server.journal, 1_000)
            assert wal_bytes(path) > MIB
        async with asyncio.timeout(60):
            while wal_bytes(path) > MIB:
                await asyncio.sleep(0.05)
        assert b"tape_wal_bytes" in server.metrics.render()


def test_an_error_of_a_checkpoint_does_not_fail_the_commit() -> None:
    class Failing:
        def wal_checkpoint(self, name: str, mode: int) -> None:
            raise apsw.exception_for(apsw.SQLITE_IOERR)

        def set_busy_timeout(self, milliseconds: int) -> None: ...

    hook = Checkpointer(SqliteLimits(wal_bytes=MIB), Metrics(), ReadGate(None))
    assert [hook(Failing(), "main", pages) for pages in (1, 130, 10_000)] == [0, 0, 0]  # type: ignore[arg-type]
