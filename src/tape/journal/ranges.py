"""Ranges of the journal: the entries that are there, checked, and gaps for what is damaged or missing.

Where a part of a range cannot be read, the range is read in halves until only the entries are left that cannot be read.
Where an index cannot be read, the table is read instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tape.errors import BackendCrashed, BackendStuck, StoreDamaged
from tape.journal.appender import Head
from tape.journal.entries import SELECT, UNREADABLE, entries_of
from tape.journal.epochs import read_holes
from tape.journal.holes import find_missing
from tape.model.entry import Entry
from tape.model.gap import JournalGap
from tape.store import Reader
from tape.store.connection import Row

# One query reads this many entries at most, so that none takes long.
WINDOW = 20_000
# One read of a damaged range ends after so many queries; the next read goes on from there.
MAX_SALVAGE_QUERIES = 512

# Reads the rows after one number up to another, at most so many, in order. Raises StoreDamaged.
Fetch = Callable[[int, int, int], list[Row]]


class Found(NamedTuple):
    """What was read of a range, and the position up to which it was read."""

    entries: list[Entry]
    gaps: list[JournalGap]
    position: int


def read_through(reader: Reader, head: Head, after: int, limit: int) -> Found:
    """Read all entries after a position. Numbers without an entry are gaps."""

    def fetch(low: int, high: int, count: int) -> list[Row]:
        sql = f"{SELECT} WHERE global_seq > ? AND global_seq <= ? ORDER BY global_seq LIMIT ?"
        return reader.query(sql, low, high, count)

    found = read_range(reader, head, fetch, after, min(head.global_seq, after + WINDOW), limit)
    if len(found.entries) == found.position - after:  # they are in order, so none is missing
        return found
    numbers = [entry.global_seq for entry in found.entries]
    for gap in found.gaps:
        numbers += range(gap.first, gap.last + 1) if gap.reason != "diverged" else ()
    return found._replace(gaps=found.gaps + find_missing(reader, after, found.position, numbers))


def read_range(reader: Reader, head: Head, fetch: Fetch, after: int, until: int, limit: int) -> Found:
    """Read a range with a query; where it fails because of damage, in halves."""
    crashing = reader.damage.first_crash(after, until)
    if crashing == after + 1:
        return Found([], [JournalGap(crashing, crashing, "damaged", UNREADABLE)], crashing)
    if crashing is not None:
        until = crashing - 1
    try:
        rows = fetch_in_order(fetch, after, until, limit)
    except BackendStuck:  # another search has no end either
        raise
    except StoreDamaged:
        rows, unreadable, position = _salvage(reader, head, fetch, after, until, limit)
        return _to_found(reader, head, rows, unreadable, after, position)
    return _to_found(reader, head, rows, [], after, _position_of(rows, until, limit))


def read_indexed(
    reader: Reader, head: Head, fetch: Fetch, after: int, limit: int, matches: Callable[[Entry], bool]
) -> Found:
    """Read up to the head with a query that an index answers; if the index is damaged, read through the table.

    An index that leads to an entry that does not match is damaged.
    """
    try:
        reader.damage.check_indexes()
        if reader.damage.first_crash(after, head.global_seq) is not None:
            raise StoreDamaged(f"An entry after {after} ends PostgreSQL's process when it is read.")
        rows = fetch_in_order(fetch, after, head.global_seq, limit)
        found = _to_found(reader, head, rows, [], after, _position_of(rows, head.global_seq, limit))
        if not all(map(matches, found.entries)):
            raise StoreDamaged(f"An index leads to other entries after {after}: the database is damaged.")
        return found
    except StoreDamaged as error:
        reader.damage.record_error(error, after + 1)
        if isinstance(error, BackendCrashed):
            reader.damage.record_index_crash()
        found = read_through(reader, head, after, limit)
        return found._replace(entries=[entry for entry in found.entries if matches(entry)])


def join_gaps(gaps: Sequence[JournalGap]) -> tuple[JournalGap, ...]:
    """The gaps in order; those that touch and have the same reason are one."""
    joined: list[JournalGap] = []
    for gap in sorted(gaps, key=lambda gap: gap.first):
        if joined and gap.first <= joined[-1].last + 1 and gap.reason == joined[-1].reason:
            last = joined[-1]
            joined[-1] = JournalGap(last.first, max(last.last, gap.last), last.reason, last.detail)
        else:
            joined.append(gap)
    return tuple(joined)


def _to_found(
    reader: Reader, head: Head, rows: list[Row], unreadable: list[JournalGap], after: int, position: int
) -> Found:
    entries, altered = entries_of(reader, rows)
    holes = read_holes(reader, head)
    position = holes.skip(position)
    return Found(entries, [*unreadable, *altered, *holes.gaps(after, position)], position)


def _position_of(rows: Sequence[Row], until: int, limit: int) -> int:
    return int(rows[-1][0]) if len(rows) == limit else until


def _salvage(
    reader: Reader, head: Head, fetch: Fetch, after: int, until: int, limit: int
) -> tuple[list[Row], list[JournalGap], int]:
    """What can be read of a range, gaps for the rest, and the position reached.

    Raises StoreDamaged if not even an empty range can be read anywhere: then no entry can be reached this way.
    """
    if _is_unreadable(fetch, 0) and _is_unreadable(fetch, head.global_seq // 2):
        fetch(head.global_seq, head.global_seq, 1)
    rows: list[Row] = []
    gaps: list[JournalGap] = []
    ranges = [(after, until)]
    for _ in range(MAX_SALVAGE_QUERIES):
        if not ranges:
            break
        low, high = ranges.pop()
        try:
            rows += fetch_in_order(fetch, low, high, limit - len(rows))
        except StoreDamaged as error:
            if high - low == 1:
                reader.damage.record_error(error, high)
                if isinstance(error, BackendCrashed):
                    reader.damage.record_crash(high)
                gaps.append(JournalGap(high, high, "damaged", UNREADABLE))
            else:
                middle = (low + high) // 2
                ranges += [(middle, high), (low, middle)]
            continue
        if len(rows) == limit:
            return rows, gaps, rows[-1][0]
    return rows, gaps, ranges[-1][0] if ranges else until


def _is_unreadable(fetch: Fetch, position: int) -> bool:
    try:
        fetch(position, position, 1)
    except StoreDamaged:
        return True
    return False


def fetch_in_order(fetch: Fetch, after: int, until: int, limit: int) -> list[Row]:
    """The rows of a range. Raises StoreDamaged if they are not in order: then a tree of the database is damaged."""
    rows = fetch(after, until, limit)
    if rows:
        numbers = [row[0] for row in rows]
        first = numbers[0]
        try:
            is_contiguous = numbers == list(range(first, first + len(numbers)))
            is_in_order = is_contiguous or numbers == sorted(set(numbers))
        except TypeError:  # PostgreSQL gives NULL where the bitmap of an entry's NULLs is damaged
            is_in_order = False
        if not (is_in_order and after < first and numbers[-1] <= until):
            raise StoreDamaged(f"Entries {after + 1} to {until} were read out of order: the database is damaged.")
    return rows
