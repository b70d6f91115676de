"""The journal in its database, read as Arrow record batches by whoever has a part of it to read.

Batches come through ADBC, straight from the database's own buffers. For SQLite that is a second SQLite
library beside apsw, and two of them on one file drop each other's locks when one closes it. So a process
has only one of them open at a time: every connection here is closed before the next one is opened, and
ADBC opens the file read-only, so that it never touches the write-ahead log's content.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import quote

import pyarrow as pa

from tape.errors import JournalDataLost, PipelineInput, StoreBusy, StoreUnavailable
from tape.journal.appender import Head, read_head
from tape.journal.reader import position_before
from tape.pipeline.columns import arrow_schema, select_list, shaped
from tape.pipeline.options import Offset, journal_database, shown
from tape.pipeline.selection import Bounds, Condition, Selecting
from tape.store import Reader
from tape.store.sqlite import SqliteDatabase

if TYPE_CHECKING:
    from tape.store.postgres import PostgresDatabase

log = logging.getLogger(__name__)

T = TypeVar("T")

BATCH_ROWS = 10_000
POSTGRES_BATCH_BYTES = 4 << 20
# How long a reader waits for a database that is gone, before Spark is told.
PATIENCE_S = 60.0
PAUSE_S = 0.5
BUSY_MS = 5_000


def ask(store: str, question: Callable[[Reader], T]) -> T:
    """The answer of a journal's database to a question; one connection, closed at once."""
    database = journal_database(store)
    connection = database.connect(read_only=True)
    try:
        if not connection.has_table("tape_head"):
            raise PipelineInput(
                f"{shown(store)} is a database without a journal. Make one with: tape migrate --store …"
            )
        return question(connection)
    finally:
        connection.close()


def ask_patiently(store: str, question: Callable[[Reader], T], patience_s: float = PATIENCE_S) -> T:
    """The same, waiting for a database that is gone for a while."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return ask(store, question)
        except (StoreUnavailable, StoreBusy) as error:
            if time.monotonic() > deadline:
                raise
            log.warning("the journal does not answer, trying again: %s", error)
            time.sleep(PAUSE_S)


def position_of(reader: Reader, offset: Offset, head: Head, oldest: int) -> int:
    """The cursor that an offset stands for: what lies after it is read, or up to it."""
    match offset:
        case "earliest":
            return oldest - 1
        case "latest":
            return head.global_seq
        case dt.datetime():
            return position_before(reader, int(offset.timestamp() * 1000))
        case int():
            return offset


def narrowed(reader: Reader, after: int, until: int, bounds: Bounds) -> tuple[int, int]:
    """A stretch of the journal without what lies outside of the bounds."""
    oldest = read_head(reader).oldest
    after = max(after, bounds.after)
    if bounds.until is not None:
        until = min(until, bounds.until)
    if bounds.from_ms is not None:
        # The oldest entry here says nothing about the times of those before it, which an archive may have.
        found = position_before(reader, bounds.from_ms)
        after = max(after, found) if found >= oldest else after
    if bounds.before_ms is not None:
        until = min(until, position_before(reader, bounds.before_ms))
    return after, max(until, after)


def read_part(
    store: str, columns: Sequence[str], selecting: Selecting, after: int, until: int, *, fail_on_data_loss: bool
) -> Iterator[pa.RecordBatch]:
    """The wanted entries after one global_seq up to another, in order.

    A database that goes away meanwhile is waited for, and reading goes on where it stopped. Entries that
    are no longer there are an error, or a warning with their number.
    """
    names = selecting.needed(("global_seq", *columns))
    schema = arrow_schema(names)
    test = selecting.test()
    position, seen, deadline = after, 0, time.monotonic() + PATIENCE_S
    while True:
        try:
            for raw in _query(store, names, selecting.conditions(), position, until):
                batch = shaped(raw, schema)
                position = batch.column("global_seq")[-1].as_py()
                seen += batch.num_rows
                deadline = time.monotonic() + PATIENCE_S
                kept = test.keep(batch) if test else batch
                if kept.num_rows:
                    yield kept.select(list(columns))
            break
        except _Gone as error:
            if time.monotonic() > deadline:
                raise StoreUnavailable(f"The journal could not be read for {PATIENCE_S:.0f} s: {error}") from error
            log.warning("the journal does not answer, trying again after %d: %s", position, error)
            time.sleep(PAUSE_S)
    _check_complete(store, selecting, after, until, seen, fail_on_data_loss)


def lost(after: int, oldest: int, fail_on_data_loss: bool) -> None:
    """Speak of entries that retention removed before they were read."""
    if after >= oldest - 1:
        return
    if fail_on_data_loss:
        raise JournalDataLost(
            f"Entries {after + 1} to {oldest - 1} were pruned before they were read. To go on with {oldest},"
            " set failOnDataLoss to false; to read them from an archive, set lake."
        )
    log.warning("entries %d to %d were pruned before they were read; going on with %d", after + 1, oldest - 1, oldest)


def _check_complete(store: str, selecting: Selecting, after: int, until: int, seen: int, fail: bool) -> None:
    if selecting.is_everything and seen == until - after:
        return
    head = ask_patiently(store, read_head)
    lost(after, min(head.oldest, until + 1), fail)
    missing = until - max(after, head.oldest - 1) - seen
    if selecting.is_everything and missing > 0:
        told = f"{missing} entries between {after + 1} and {until} are missing. Run: tape verify"
        if fail:
            raise JournalDataLost(told)
        log.warning("%s", told)


class _Gone(Exception):
    """The connection to the database was lost."""


def _query(
    store: str, names: Sequence[str], conditions: Sequence[Condition], after: int, until: int
) -> Iterator[pa.RecordBatch]:
    database = journal_database(store)
    where = " AND ".join(f"({condition.sql})" for condition in conditions)
    sql = (
        f"SELECT {select_list(names, database.dialect)} FROM tape_journal WHERE {where}{' AND ' if where else ''}"
        f"global_seq > {int(after)} AND global_seq <= {int(until)} ORDER BY global_seq"
    )
    params = [param for condition in conditions for param in condition.params]
    if isinstance(database, SqliteDatabase):
        yield from _query_sqlite(database, sql, params)
    else:
        yield from _query_postgres(cast("PostgresDatabase", database), sql, params)


def _query_sqlite(database: SqliteDatabase, sql: str, params: list[Any]) -> Iterator[pa.RecordBatch]:
    import adbc_driver_sqlite.dbapi as adbc

    address = f"file:{quote(str(database.path))}?mode=ro"
    with contextlib.closing(adbc.connect(address)) as connection, contextlib.closing(connection.cursor()) as cursor:
        try:
            cursor.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
            cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)})
            yield from _batches(cursor, sql, params)
        except adbc.Error as error:
            # Whoever closes the file last removes its write-ahead log, and nobody gets in meanwhile.
            if "database is locked" in str(error):
                raise _Gone(error) from error
            raise


def _query_postgres(database: PostgresDatabase, sql: str, params: list[Any]) -> Iterator[pa.RecordBatch]:
    import adbc_driver_postgresql.dbapi as adbc

    for number in range(1, len(params) + 1):
        sql = sql.replace("?", f"${number}", 1)
    try:
        connection = adbc.connect(database.conninfo)
    except adbc.Error as error:
        raise _Gone(error) from error
    with contextlib.closing(connection), contextlib.closing(connection.cursor()) as cursor:
        cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(POSTGRES_BATCH_BYTES)})
        try:
            yield from _batches(cursor, sql, params)
        except adbc.OperationalError as error:
            raise _Gone(error) from error


def _batches(cursor: Any, sql: str, params: list[Any]) -> Iterator[pa.RecordBatch]:
    cursor.execute(sql, params or None)
    with cursor.fetch_record_batch() as batches:
        for batch in batches:
            if batch.num_rows:
                yield batch
