"""Comparison of the journal's indexes with its table, in both directions.

Every entry is looked up through each index, as readers do, and each index must have as many entries as the table.
Some indexes of SQLite are tables of their own (`key_index.py`), which have the entries up to their watermark.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tape.errors import BackendCrashed, BackendStuck, StoreBusy
from tape.journal.findings import Finding
from tape.journal.key_index import BLOCK_BITS, KEY_INDEXES, WATERMARK, rebuild_key_indexes
from tape.journal.salvage import UNAVAILABLE, describe, read_windows
from tape.store import Database, Reader, Transaction
from tape.store.connection import Dialect

# Entries in one statement, and blocks of 8 KiB where the table is read in the order of the file.
WINDOW = 10_000
BLOCKS = 100
# The time limit of a statement with lookups; it grows where the disk is slow. PostgreSQL does not keep to it if it
# searches without an end.
LOOKUP_S = 30.0
MAX_LOOKUP_S = 3_600.0
# After so many lookups that fail with an error, ranges are named without looking up each of their entries.
MAX_FAILURES = 1_000
# A walk along an index of PostgreSQL that has more entries than twice the numbers of the journal and this goes in a
# circle, and so does one that takes longer than 30 s and a millisecond for each of them.
SLACK = 10_000
WALK_S = 30.0
MAX_LIMIT_S = 2_000_000.0
MAX_ROWS_OF_BLOCK = 300
REMEDY = "the table is not affected; rebuild it: tape verify --repair-indexes"


class JournalIndex(msgspec.Struct, frozen=True):
    """An index of the table of entries: its columns, and the column that is not empty in what a partial one has.

    `is_table` says that it is a table of its own.
    """

    name: str
    columns: tuple[str, ...]
    partial_on: str = ""
    is_table: bool = False

    @property
    def condition(self) -> str:
        """The condition of a partial index, as it was created."""
        return f"{self.partial_on} <> ''" if self.partial_on else ""

    @property
    def detail(self) -> str:
        """What a finding says about an entry that is not in the index."""
        return f"is not in the index {self.name}; {REMEDY}"


_RUNS = JournalIndex("tape_journal_run", ("run_id", "tenant", "seq"))
_SQLITE_INDEXES = (
    _RUNS,
    *(JournalIndex(each.table, (*each.columns, "global_seq"), each.partial_on, is_table=True) for each in KEY_INDEXES),
)
_POSTGRES_INDEXES = (
    JournalIndex("tape_journal_pkey", ("global_seq",)),
    _RUNS,
    JournalIndex("tape_journal_subject", ("subject", "global_seq")),
    JournalIndex("tape_journal_identity", ("tenant", '"user"', "session", "global_seq"), "session"),
)
# How PostgreSQL is made to look up through indexes, and to count without them.
_LOOKUP = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "enable_incremental_sort": "off",
    "enable_indexscan": "on",
}
_SCAN = {"enable_seqscan": "on", "enable_bitmapscan": "off", "enable_indexscan": "off", "enable_indexonlyscan": "off"}
_SETTINGS = sorted({*_LOOKUP, *_SCAN})


def indexes_of(dialect: Dialect) -> tuple[JournalIndex, ...]:
    """The indexes that a dialect has beside the table: the table of SQLite is the tree of its primary key."""
    return _SQLITE_INDEXES if dialect == "sqlite" else _POSTGRES_INDEXES


def find_unindexed(reader: Reader, first: int, last: int) -> Iterator[Finding]:
    """The entries of a range of numbers that cannot be found through an index, each once per index."""
    try:
        for index in indexes_of(reader.dialect):
            lookup = _Lookup(index)
            for low, high in read_windows(reader, first, last, WINDOW):
                yield from lookup.find(reader, low, high)
    finally:
        _reset(reader)


def check_indexes(reader: Reader, oldest: int, head: int, *, is_complete: bool) -> Iterator[Finding]:
    """Everything that the indexes and the table do not agree on, for the whole journal.

    What an index has in excess is named only if the table is complete: else it may be what the table has lost.
    """
    try:
        if reader.dialect == "sqlite":
            yield from find_unindexed(reader, oldest, head)
            for index in indexes_of("sqlite") if is_complete else ():
                yield from _compare_counts(reader, index, oldest)
            return
        for index in indexes_of(reader.dialect):
            yield from _check_in_postgres(reader, index, oldest, head, is_complete=is_complete)
    finally:
        _reset(reader)


def rebuild_indexes(database: Database) -> None:
    """Make all indexes of the journal anew from its table, under the write lock."""
    connection = database.connect()
    try:
        connection.sort_on_disk()
        connection.begin()  # within the limits of time: a process that keeps the lock without an end is named
        try:
            connection.lift_time_limits()
            if database.dialect == "sqlite":
                connection.run_script("REINDEX tape_journal")
                rebuild_key_indexes(Transaction(connection))
            else:
                connection.run_script("REINDEX TABLE tape_journal")
            connection.commit()
        except BaseException:
            connection.rollback()
            raise
    finally:
        connection.close()


class _Lookup:
    """Lookups of entries through one index; a range that fails with an error is halved."""

    def __init__(self, index: JournalIndex) -> None:
        self._index = index
        self._failures = 0
        self._limit_s = LOOKUP_S

    def find(self, reader: Reader, first: int, last: int, unit: str = "global_seq") -> Iterator[Finding]:
        """The entries from one number, or block of the file, to another that the index does not have."""
        if self._failures >= MAX_FAILURES and unit == "block":
            for low, high in _numbers_in_blocks(reader, first, last):
                yield Finding(low, "index", f"was not looked up through the index {self._index.name}; {REMEDY}", high)
            return
        try:
            _set(reader, _LOOKUP)
            reader.limit_statements(self._limit_s)
            for (number,) in reader.query(_unindexed_sql(self._index, reader.dialect, first, last, unit)):
                # NULL where the bitmap of an entry's NULLs is damaged: the walk over the chain names the entry.
                yield Finding(number or 0, "index", self._index.detail)
            return
        except StoreBusy:
            if self._limit_s > MAX_LOOKUP_S:
                raise
            self._limit_s *= 4  # a slow disk
            yield from self.find(reader, first, last, unit)
            return
        except UNAVAILABLE:
            raise
        except Exception as error:
            detail = f"cannot be found through the index {self._index.name}: {describe(error)}; {REMEDY}"
            # PostgreSQL recovers from each crash: what makes it crash is not searched for.
            self._failures += MAX_FAILURES if isinstance(error, BackendCrashed | BackendStuck) else 0
        if unit == "block":
            for low, high in _numbers_in_blocks(reader, first, last):
                yield from self._find_numbers(reader, low, high, detail)
        elif first == last or self._failures >= MAX_FAILURES:
            self._failures += 1
            yield Finding(first, "index", detail, last)
        else:
            middle = (first + last) // 2
            yield from self.find(reader, first, middle)
            yield from self.find(reader, middle + 1, last)

    def _find_numbers(self, reader: Reader, first: int, last: int, detail: str) -> Iterator[Finding]:
        if self._failures >= MAX_FAILURES:
            yield Finding(first, "index", detail, last)
        else:
            yield from self.find(reader, first, last)


def _unindexed_sql(index: JournalIndex, dialect: Dialect, first: int, last: int, unit: str) -> str:
    # Not in the words of the index: PostgreSQL would list the entries from the very index that may lack some.
    wanted = f"length(a.{index.partial_on}) > 0 AND " if index.partial_on else ""
    if unit == "block":
        where = f"a.ctid >= '({first},0)'::tid AND a.ctid < '({last + 1},0)'::tid"
    else:
        where = f"a.global_seq >= {first} AND a.global_seq <= {last}"
    ours = ", ".join(f"a.{column}" for column in index.columns)
    theirs = ", ".join(f"b.{column}" for column in index.columns)
    extra = f" AND b.{index.condition}" if index.condition else ""
    if index.is_table:
        keys = " AND ".join(f"i.{column} = a.{column}" for column in index.columns)
        source = f"tape_journal_blocks AS b CROSS JOIN {index.name} AS i ON i.block = b.block"
        found = f"EXISTS (SELECT 1 FROM {source} WHERE b.block = a.global_seq >> {BLOCK_BITS} AND {keys})"
        where = f"{where} AND a.global_seq <= {WATERMARK['sqlite']}"
        return f"SELECT a.global_seq FROM tape_journal AS a NOT INDEXED WHERE {where} AND {wanted}NOT {found}"
    if dialect == "sqlite":
        keys = " AND ".join(f"b.{column} = a.{column}" for column in (*index.columns, "global_seq"))
        found = f"EXISTS (SELECT 1 FROM tape_journal AS b INDEXED BY {index.name} WHERE {keys}{extra})"
        return f"SELECT a.global_seq FROM tape_journal AS a NOT INDEXED WHERE {where} AND {wanted}NOT {found}"
    # The comparison and the order of rows leave the planner this index only. It must lead to this very row.
    keys = f"({theirs}) >= ({ours}) AND ({theirs}) <= ({ours}){extra} ORDER BY {theirs}"
    found = f"a.ctid = ANY(ARRAY(SELECT b.ctid FROM tape_journal AS b WHERE {keys}))"
    return f"SELECT a.global_seq FROM tape_journal AS a WHERE {where} AND {wanted}NOT {found}"


def _check_in_postgres(
    reader: Reader, index: JournalIndex, oldest: int, head: int, *, is_complete: bool
) -> Iterator[Finding]:
    """Walk along an index, then look up all entries through it in the order of the file.

    A walk along pages that point in a circle can be ended, a search cannot: PostgreSQL looks for a request to stop at
    each step of the one, and at no step of the other. So such an index is not searched.
    """
    blocks = _blocks(reader)
    limit = 2 * min(head - oldest + 1, blocks * MAX_ROWS_OF_BLOCK) + SLACK
    try:
        in_index = _walk(reader, index, limit)
    except StoreBusy:
        in_index = limit
    except UNAVAILABLE:
        raise
    except Exception as error:
        in_index = 0
        yield Finding(0, "index", f"the index {index.name} cannot be read: {describe(error)}; {REMEDY}")
    if in_index >= limit:
        yield Finding(oldest, "index", f"the pages of the index {index.name} point in a circle; {REMEDY}", head)
        return
    yield from _find_by_blocks(reader, index, blocks)
    if is_complete and in_index and (surplus := in_index - _count(reader, index)) > 0:
        yield Finding(0, "index", f"the index {index.name} has {surplus} entries in excess; {REMEDY}")


def _walk(reader: Reader, index: JournalIndex, limit: int) -> int:
    """The number of entries in an index of PostgreSQL, at most `limit`. The table is counted later, and may grow."""
    columns = ", ".join(index.columns)
    _set(reader, _LOOKUP | {"enable_indexonlyscan": "on"})
    reader.limit_statements(min(WALK_S + limit / 1_000, MAX_LIMIT_S))
    where = f"WHERE {index.condition}" if index.condition else ""
    # The limit keeps the order, and with it the index.
    row = reader.one(
        f"SELECT count(*) FROM (SELECT {columns} FROM tape_journal {where} ORDER BY {columns} LIMIT {limit}) AS entries"
    )
    return int(row[0]) if row else 0


def _count(reader: Reader, index: JournalIndex) -> int:
    _set(reader, _SCAN)
    reader.limit_statements(0)
    row = reader.one(f"SELECT count(*) FROM tape_journal {f'WHERE {index.condition}' if index.condition else ''}")
    return int(row[0]) if row else 0


def _blocks(reader: Reader) -> int:
    row = reader.one("SELECT pg_relation_size('tape_journal') / current_setting('block_size')::bigint")
    return int(row[0]) if row else 0


def _find_by_blocks(reader: Reader, index: JournalIndex, blocks: int) -> Iterator[Finding]:
    """Look up all entries in the order of the file, without the help of any index."""
    lookup = _Lookup(index)
    for start in range(0, blocks, BLOCKS):
        yield from lookup.find(reader, start, min(start + BLOCKS, blocks) - 1, "block")


def _numbers_in_blocks(reader: Reader, first: int, last: int) -> list[tuple[int, int]]:
    """The ranges of numbers in some blocks of the file; those of blocks that cannot be read are left out."""
    try:
        _set(reader, _SCAN)
        rows = reader.query(
            "SELECT global_seq FROM tape_journal"
            f" WHERE ctid >= '({first},0)'::tid AND ctid < '({last + 1},0)'::tid ORDER BY global_seq"
        )
    except UNAVAILABLE:
        raise
    except Exception:
        if first == last:
            return []  # the walk over the chain names what cannot be read
        middle = (first + last) // 2
        return _numbers_in_blocks(reader, first, middle) + _numbers_in_blocks(reader, middle + 1, last)
    ranges: list[tuple[int, int]] = []
    for (number,) in rows:
        if number is None:  # the walk over the chain names it
            continue
        if ranges and ranges[-1][1] + 1 == number:
            ranges[-1] = ranges[-1][0], number
        else:
            ranges.append((number, number))
    return ranges


def _compare_counts(reader: Reader, index: JournalIndex, oldest: int) -> Iterator[Finding]:
    """Entries of an index of SQLite that the table does not have."""
    try:
        surplus = _surplus(reader, index, oldest)
    except UNAVAILABLE:
        raise
    except Exception as error:
        yield Finding(0, "index", f"the index {index.name} cannot be read: {describe(error)}; {REMEDY}")
        return
    if surplus:
        yield Finding(0, "index", f"the index {index.name} has {surplus} entries in excess; {REMEDY}")


def _surplus(reader: Reader, index: JournalIndex, oldest: int) -> int:
    where = f"WHERE {index.condition}" if index.condition else ""
    indexed = f"tape_journal INDEXED BY {index.name} {where}"
    if index.is_table:  # it keeps pruned entries until their whole block is pruned
        indexed = f"{index.name} WHERE global_seq >= {oldest}"
        where = f"{where} {'AND' if where else 'WHERE'} global_seq <= {WATERMARK['sqlite']}"
    row = reader.one(
        f"SELECT (SELECT count(*) FROM {indexed}), (SELECT count(*) FROM tape_journal NOT INDEXED {where})"
    )
    return max(row[0] - row[1], 0) if row else 0


def _set(reader: Reader, values: dict[str, str]) -> None:
    """Plan the next statement so; a connection that was opened anew has forgotten it, so each window sets it."""
    if reader.dialect == "postgres":
        reader.query(f"SELECT {', '.join(f'set_config({name!r}, {value!r}, false)' for name, value in values.items())}")


def _reset(reader: Reader) -> None:
    if reader.dialect == "postgres":
        reader.limit_statements(0)
        names = ", ".join(map(repr, _SETTINGS))
        reader.query(f"SELECT set_config(name, reset_val, false) FROM pg_settings WHERE name IN ({names})")
