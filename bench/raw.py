"""The limit that the database sets: the same rows through its driver, with nothing of Tape in between."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import apsw

from bench.load import Outcome, summarize
from tape.model.entry import COLUMNS
from tape.store import open_database

Row = tuple[Any, ...]
RUN_ID, TENANT, SEQ = (COLUMNS.index(name) for name in ("run_id", "tenant", "seq"))
GLOBAL_SEQ, CHAIN, TS_MS = COLUMNS.index("global_seq"), COLUMNS.index("chain"), COLUMNS.index("ts_ms")

_NAMES = ",".join(COLUMNS)
_SELECT = f"SELECT {_NAMES} FROM tape_journal WHERE global_seq > {{}} ORDER BY global_seq"
_HEADS = (
    "INSERT INTO tape_run_heads (run_id, tenant, seq) {} ON CONFLICT (run_id, tenant) DO UPDATE SET seq = excluded.seq"
)
_HEAD = "UPDATE tape_head SET global_seq = {0}, chain = {0}, ts_ms = {0} WHERE id = 1"


class Driver(ABC):
    """One connection of a driver on a store that has Tape's tables, as durable as Tape's own."""

    def __init__(self, store: str) -> None:
        open_database(store).migrate()

    @abstractmethod
    def select(self, after: int) -> Iterator[Row]:
        """The rows of the journal after a global_seq."""

    @abstractmethod
    def insert(self, row: Row) -> None:
        """One row, committed."""

    @abstractmethod
    def insert_many(self, rows: Sequence[Row]) -> None:
        """Rows, the heads of their runs and the head of the journal, in one transaction."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect."""


class Sqlite(Driver):
    """apsw, with the pragmas that Tape sets."""

    def __init__(self, store: str) -> None:
        super().__init__(store)
        self._db = apsw.Connection(store.removeprefix("sqlite:"))
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "cache_size=-65536", "temp_store=MEMORY"):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.execute("PRAGMA wal_autocheckpoint=8000")
        self._insert = f"INSERT INTO tape_journal ({_NAMES}) VALUES ({','.join('?' * len(COLUMNS))})"

    def select(self, after: int) -> Iterator[Row]:
        return self._db.execute(_SELECT.format("?"), (after,))

    def insert(self, row: Row) -> None:
        self._db.execute(self._insert, row)

    def insert_many(self, rows: Sequence[Row]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany(self._insert, rows)
        self._db.executemany(_HEADS.format("VALUES (?,?,?)"), _run_heads(rows))
        self._db.execute(_HEAD.format("?"), _head(rows))
        self._db.execute("COMMIT")

    def close(self) -> None:
        self._db.close()


class Postgres(Driver):
    """psycopg, without the notifications that Tape's trigger sends."""

    def __init__(self, store: str) -> None:
        import psycopg

        super().__init__(store)
        self._db = psycopg.connect(store, autocommit=True)
        self._db.execute("SET synchronous_commit = on")
        self._db.execute("ALTER TABLE tape_journal DISABLE TRIGGER USER")
        self._cursor = self._db.cursor(binary=True)
        self._insert = f"INSERT INTO tape_journal ({_NAMES}) VALUES ({','.join(['%b'] * len(COLUMNS))})"

    def select(self, after: int) -> Iterator[Row]:
        with self._db.transaction(), self._db.cursor("rows", binary=True) as cursor:
            cursor.itersize = 2_000
            yield from cursor.execute(_SELECT.format("%b"), (after,))

    def insert(self, row: Row) -> None:
        self._cursor.execute(self._insert, row)

    def insert_many(self, rows: Sequence[Row]) -> None:
        with self._db.transaction():
            with self._cursor.copy(f"COPY tape_journal ({_NAMES}) FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)
            source = "SELECT * FROM unnest(%b::text[], %b::text[], %b::int8[])"
            self._cursor.execute(_HEADS.format(source), tuple(map(list, zip(*_run_heads(rows), strict=True))))
            self._cursor.execute(_HEAD.format("%b"), _head(rows))

    def close(self) -> None:
        self._db.close()


def connect(store: str) -> Driver:
    """The driver for a store URL."""
    return Sqlite(store) if store.startswith("sqlite:") else Postgres(store)


def rows_of(store: str, after: int = 0) -> list[Row]:
    """What Tape has written there."""
    driver = connect(store)
    try:
        return list(driver.select(after))
    finally:
        driver.close()


def write_in_transactions(store: str, rows: Sequence[Row], size: int) -> Outcome:
    """Write rows in transactions of that size; latencies are of whole transactions."""
    driver = connect(store)
    try:
        return _timed(driver, [rows[start : start + size] for start in range(0, len(rows), size)], len(rows))
    finally:
        driver.close()


def _timed(driver: Driver, batches: list[Sequence[Row]], entries: int) -> Outcome:
    latencies = []
    began = time.perf_counter()
    for batch in batches:
        started = time.perf_counter()
        driver.insert_many(batch)
        latencies.append(time.perf_counter() - started)
    took = time.perf_counter() - began
    per_transaction = summarize(latencies, took)
    return Outcome(entries, took, per_transaction.p50_ms, per_transaction.p99_ms)


def _run_heads(rows: Sequence[Row]) -> list[Row]:
    return [(*run, seq) for run, seq in {(row[RUN_ID], row[TENANT]): row[SEQ] for row in rows}.items()]


def _head(rows: Sequence[Row]) -> tuple[int, bytes, int]:
    last = rows[-1]
    return last[GLOBAL_SEQ], last[CHAIN], last[TS_MS]
