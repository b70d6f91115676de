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
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace as replace_field

from tape.archive.rows import to_table
from tape.base.retry import WHILE_UNAVAILABLE, Backoff, retry
from tape.errors import JournalDataLost, PipelineInput, StoreBusy, StoreUnavailable
from tape.journal.appender import Head, read_head
from tape.journal.epochs import Holes, read_holes
from tape.journal.ranges import Found, join_gaps, read_through
from tape.journal.reader import position_before
from tape.model.gap import JournalGap
from tape.pipeline.checked_rows import CHECKED, is_sound
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
# Where a batch is not sound, this many entries are read at once with the journal's own reader, which names each.
CAREFUL_ROWS = 2_000
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

    If the database becomes unavailable, reading resumes after the last entry for up to 60 s. Every entry is checked
    against its checksum. Missing and damaged entries are an error, or with `fail_on_data_loss=False` a warning, that
    names them.
    """
    names = tuple(dict.fromkeys((*selection.required_columns(columns), *CHECKED)))
    schema = arrow_schema(names[:-1]).append(pa.field("checksum", pa.int64()))
    batch_filter, full_filter = selection.batch_filter(), selection.batch_filter(decide_all=True)
    is_careful, doubtful_until = False, 0
    position, seen, deadline, backoff = after, 0, time.monotonic() + OUTAGE_TIMEOUT_S, Backoff(STORE_RETRY)
    while True:
        try:
            with contextlib.closing(_query(store, names, selection.conditions(), position, until)) as batches:
                for raw in batches:
                    batch = _checked(raw, schema, position)
                    position = batch.column("global_seq")[-1].as_py()
                    seen += batch.num_rows
                    deadline = time.monotonic() + OUTAGE_TIMEOUT_S
                    backoff.reset()
                    kept = batch_filter.keep(batch) if batch_filter else batch
                    if kept.num_rows:
                        yield kept.select(list(columns))
            break
        except _Doubtful as error:
            doubtful_until = error.last
            if not is_careful:
                log.warning("entries after %d are checked one by one, which takes longer: %s", position, error)
                is_careful = True
        except _ConnectionLost as error:
            if time.monotonic() > deadline:
                raise StoreUnavailable(
                    f"The journal could not be read for {OUTAGE_TIMEOUT_S:.0f} s: {error}"
                ) from error
            log.warning("journal unavailable, retrying after entry %d: %s", position, error)
            backoff.wait()
            continue
        # The other SQLite library is closed now.
        first = position
        while position == first or position < doubtful_until:
            found = query_store(store, partial(_read_through, after=position, until=until))
            _report_damage(found, fail_on_data_loss)
            seen += len(found.entries) + sum(gap.last - gap.first + 1 for gap in _damaged(found))
            position = found.position
            for batch in to_table(found.entries).to_batches():
                kept = full_filter.keep(batch) if full_filter else batch
                if kept.num_rows:
                    yield kept.select(list(columns))
    _check_complete(store, selection, after, until, seen, fail_on_data_loss)


def _checked(raw: pa.RecordBatch, schema: pa.Schema, after: int) -> pa.RecordBatch:
    """A batch from the database in its types. Raises _Doubtful unless rows are in order and have their checksums."""
    try:
        batch = shaped(raw, schema)
        if is_sound(batch, after):
            return batch
    except (pa.ArrowException, UnicodeError, TypeError, ValueError) as error:
        raise _Doubtful(str(error)) from error
    raise _Doubtful("a checksum is missing or differs", pc.max(batch.column("global_seq")).as_py())


def _read_through(reader: Reader, after: int, until: int) -> Found:
    """The next entries up to a position, each proven by its checksum or the chain, and gaps for all others."""
    head = read_head(reader)
    found = read_through(reader, head, max(after, head.oldest - 1), CAREFUL_ROWS)
    if found.position <= until:
        return found
    entries = [entry for entry in found.entries if entry.global_seq <= until]
    gaps = [replace_field(gap, last=min(gap.last, until)) for gap in found.gaps if gap.first <= until]
    return Found(entries, gaps, until)


def _damaged(found: Found) -> list[JournalGap]:
    return [gap for gap in found.gaps if gap.reason != "diverged"]


def _report_damage(found: Found, fail_on_data_loss: bool) -> None:
    """Raise JournalDataLost, or log a warning, for each range of entries that are not what was written."""
    for gap in join_gaps(_damaged(found)):
        which = f"Entry {gap.first} is" if gap.first == gap.last else f"Entries {gap.first} to {gap.last} are"
        message = f"{which} damaged: {gap.detail}. `tape verify` names all damage."
        if fail_on_data_loss:
            raise JournalDataLost(f"{message} To go on without what is damaged, set failOnDataLoss to false.")
        log.warning("%s Continuing after %d", message, gap.last)


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


class _Doubtful(Exception):
    """Rows cannot be read, or are perhaps not what was written; `last` is the number of the last one, if known."""

    def __init__(self, reason: str, last: int = 0) -> None:
        super().__init__(reason)
        self.last = last


def _query(
    store: str, names: Sequence[str], conditions: Sequence[Condition], after: int, until: int
) -> Generator[pa.RecordBatch]:
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
            raise _Doubtful(str(error)) from error


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
        except adbc.Error as error:
            raise _Doubtful(str(error)) from error


def _batches(cursor: Any, sql: str, params: list[Any]) -> Iterator[pa.RecordBatch]:
    cursor.execute(sql, params or None)
    with cursor.fetch_record_batch() as batches:
        for batch in batches:
            if batch.num_rows:
                yield batch
