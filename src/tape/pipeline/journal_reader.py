"""Reads the journal's database: short queries, and ranges of entries as Arrow record batches.

Record batches come through ADBC, without a detour over Python objects. For SQLite, ADBC brings a second SQLite
library beside apsw, and two libraries in one process drop each other's file locks when one of them closes the file.
Therefore a process has only one of them open at a time: every connection here is closed before the next one is
opened. ADBC opens the file read-only and never changes the write-ahead log.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import quote

import pyarrow as pa

from tape.base.retry import WHILE_UNAVAILABLE, Backoff, retry
from tape.errors import JournalDataLost, PipelineInput, StoreBusy, StoreUnavailable
from tape.journal.appender import Head, read_head
from tape.journal.epochs import Holes, read_holes
from tape.journal.reader import position_before
from tape.pipeline.columns import arrow_schema, select_list, shaped
from tape.pipeline.options import Offset, journal_database, shown
from tape.pipeline.selection import Bounds, Condition, EntrySelection
from tape.store import Reader
from tape.store.sqlite import SqliteDatabase

if TYPE_CHECKING:
    from tape.store.postgres import PostgresDatabase

log = logging.getLogger(__name__)

T = TypeVar("T")

BATCH_ROWS = 10_000
POSTGRES_BATCH_BYTES = 4 << 20
# How long a query is retried while the database is unavailable.
OUTAGE_TIMEOUT_S = 60.0
STORE_RETRY = replace(WHILE_UNAVAILABLE, retry_on=(StoreUnavailable, StoreBusy))
BUSY_MS = 5_000


def query_store_once(store: str, query: Callable[[Reader], T]) -> T:
    """Run a query on the journal's database over a connection of its own, without retries."""
    database = journal_database(store)
    connection = database.connect(read_only=True)
    try:
        if not connection.has_table("tape_head"):
            raise PipelineInput(
                f"{shown(store)} is a database without a journal. Create one with: tape migrate --store …"
            )
        return query(connection)
    finally:
        connection.close()


def query_store(store: str, query: Callable[[Reader], T], timeout_s: float = OUTAGE_TIMEOUT_S) -> T:
    """Run a query on the journal's database; retry for up to 60 s while the database is unavailable."""
    return retry(
        lambda: query_store_once(store, query),
        STORE_RETRY,
        deadline_s=timeout_s,
        on_retry=lambda error, attempt, delay_s: log.warning("journal unavailable, retrying: %s", error),
    )


def position_of(reader: Reader, offset: Offset, head: Head, oldest: int) -> int:
    """Resolve an offset to a global_seq: reading begins after it, or ends with it."""
    match offset:
        case "earliest":
            return oldest - 1
        case "latest":
            return head.global_seq
        case dt.datetime():
            return position_before(reader, int(offset.timestamp() * 1000))
        case int():
            return offset


def narrow_range(reader: Reader, after: int, until: int, bounds: Bounds) -> tuple[int, int]:
    """Narrow a range of global_seqs to the bounds of a selection."""
    oldest = read_head(reader).oldest
    after = max(after, bounds.after)
    if bounds.until is not None:
        until = min(until, bounds.until)
    if bounds.from_ms is not None:
        # Entries before the oldest one may be in an archive, and the database does not know their times.
        found = position_before(reader, bounds.from_ms)
        after = max(after, found) if found >= oldest else after
    if bounds.before_ms is not None:
        until = min(until, position_before(reader, bounds.before_ms))
    return after, max(until, after)


def read_journal_range(
    store: str, columns: Sequence[str], selection: EntrySelection, after: int, until: int, *, fail_on_data_loss: bool
) -> Iterator[pa.RecordBatch]:
    """Read the selected entries after one global_seq up to and including another, in order.

    If the database becomes unavailable, reading resumes after the last entry for up to 60 s. Missing entries are an
    error, or with `fail_on_data_loss=False` a warning that gives their number.
    """
    names = selection.required_columns(("global_seq", *columns))
    schema = arrow_schema(names)
    batch_filter = selection.batch_filter()
    position, seen, deadline, backoff = after, 0, time.monotonic() + OUTAGE_TIMEOUT_S, Backoff(STORE_RETRY)
    while True:
        try:
            for raw in _query(store, names, selection.conditions(), position, until):
                batch = shaped(raw, schema)
                position = batch.column("global_seq")[-1].as_py()
                seen += batch.num_rows
                deadline = time.monotonic() + OUTAGE_TIMEOUT_S
                backoff.reset()
                kept = batch_filter.keep(batch) if batch_filter else batch
                if kept.num_rows:
                    yield kept.select(list(columns))
            break
        except _ConnectionLost as error:
            if time.monotonic() > deadline:
                raise StoreUnavailable(
                    f"The journal could not be read for {OUTAGE_TIMEOUT_S:.0f} s: {error}"
                ) from error
            log.warning("journal unavailable, retrying after entry %d: %s", position, error)
            backoff.wait()
    _check_complete(store, selection, after, until, seen, fail_on_data_loss)


def report_data_loss(after: int, oldest: int, fail_on_data_loss: bool) -> None:
    """Raise JournalDataLost, or log a warning, if retention removed entries before they were read."""
    if after >= oldest - 1:
        return
    if fail_on_data_loss:
        raise JournalDataLost(
            f"Entries {after + 1} to {oldest - 1} were pruned before they were read. To go on with {oldest},"
            " set failOnDataLoss to false; to read them from an archive, set lake."
        )
    log.warning("entries %d to %d were pruned before they were read; continuing with %d", after + 1, oldest - 1, oldest)


def _check_complete(store: str, selection: EntrySelection, after: int, until: int, seen: int, fail: bool) -> None:
    if selection.selects_all and seen == until - after:
        return
    head, holes = query_store(store, read_head_and_holes)
    report_data_loss(after, min(head.oldest, until + 1), fail)
    first = max(after + 1, head.oldest)
    missing = until - first + 1 - holes.count(first, until) - seen
    if selection.selects_all and missing > 0:
        message = f"{missing} entries between {after + 1} and {until} are missing. Run: tape verify"
        if fail:
            raise JournalDataLost(message)
        log.warning("%s", message)


def read_head_and_holes(reader: Reader) -> tuple[Head, Holes]:
    """The head of the journal, and the ranges of numbers that it has no entries for because the database lost them."""
    head = read_head(reader)
    return head, read_holes(reader, head)


def report_divergence(after: int, holes: Holes, fail_on_data_loss: bool) -> None:
    """Raise JournalDataLost, or log a warning, if a position is in a range of entries that the database lost."""
    for hole in holes:
        if hole.start <= after < hole.stop - 1:
            message = (
                f"Entries {hole.start} to {hole.stop - 1} were lost by the database, and {after} was read already."
            )
            if fail_on_data_loss:
                raise JournalDataLost(f"{message} To go on with {hole.stop}, set failOnDataLoss to false.")
            log.warning("%s Continuing with %d", message, hole.stop)


class _ConnectionLost(Exception):
    """The connection to the database was lost."""


def _query(
    store: str, names: Sequence[str], conditions: Sequence[Condition], after: int, until: int
) -> Iterator[pa.RecordBatch]:
    database = journal_database(store)
    where = " AND ".join(f"({condition.sql})" for condition in conditions)

    def sql(after: int) -> str:
        return (
            f"SELECT {select_list(names, database.dialect)} FROM tape_journal WHERE {where}{' AND ' if where else ''}"
            f"global_seq > {int(after)} AND global_seq <= {int(until)} ORDER BY global_seq"
        )

    params = [param for condition in conditions for param in condition.params]
    if isinstance(database, SqliteDatabase):
        yield from _query_sqlite(database, sql, after, params)
    else:
        yield from _query_postgres(cast("PostgresDatabase", database), sql(after), params)


def _query_sqlite(
    database: SqliteDatabase, sql: Callable[[int], str], after: int, params: list[Any]
) -> Iterator[pa.RecordBatch]:
    """One statement for each batch: an open one keeps its snapshot, and the write-ahead log grows meanwhile."""
    import adbc_driver_sqlite.dbapi as adbc

    address = f"file:{quote(str(database.path))}?mode=ro"
    with contextlib.closing(adbc.connect(address)) as connection, contextlib.closing(connection.cursor()) as cursor:
        try:
            connection.adbc_connection.set_autocommit(True)  # otherwise the driver begins a transaction and keeps it
            cursor.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
            cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)})
            while batches := list(_batches(cursor, f"{sql(after)} LIMIT {BATCH_ROWS}", params)):
                yield from batches
                if sum(batch.num_rows for batch in batches) < BATCH_ROWS:
                    return
                after = batches[-1].column("global_seq")[-1].as_py()
        except adbc.Error as error:
            # The last connection to close removes the write-ahead log and holds an exclusive lock meanwhile. The driver
            # reports that without a code.
            if "database is locked" in str(error):
                raise _ConnectionLost(error) from error
            raise


def _query_postgres(database: PostgresDatabase, sql: str, params: list[Any]) -> Iterator[pa.RecordBatch]:
    import adbc_driver_postgresql.dbapi as adbc

    for number in range(1, len(params) + 1):
        sql = sql.replace("?", f"${number}", 1)
    try:
        connection = adbc.connect(database.conninfo)
    except adbc.Error as error:
        raise _ConnectionLost(error) from error
    with contextlib.closing(connection), contextlib.closing(connection.cursor()) as cursor:
        cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(POSTGRES_BATCH_BYTES)})
        try:
            yield from _batches(cursor, sql, params)
        except adbc.OperationalError as error:
            raise _ConnectionLost(error) from error


def _batches(cursor: Any, sql: str, params: list[Any]) -> Iterator[pa.RecordBatch]:
    cursor.execute(sql, params or None)
    with cursor.fetch_record_batch() as batches:
        for batch in batches:
            if batch.num_rows:
                yield batch
