"""Reading of a journal that may be damaged: everything that can still be read, in order, in bounded memory.

A range that cannot be read is halved until the entries that cause it are left. A range without entries is passed over
at once, however long it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from tape.errors import StoreBusy, StoreFull, StoreUnavailable
from tape.journal.findings import Problem
from tape.model.chain import TEXTS
from tape.store import Reader
from tape.store.connection import Row

WINDOW = 2_000
# A window is made smaller until its texts have no more bytes than this.
WINDOW_BYTES = 16 << 20
# Not damage: the store cannot be asked at present.
UNAVAILABLE = (StoreUnavailable, StoreBusy, StoreFull)

_TEXTS = ",".join(f'"{name}"' for name in TEXTS)
_SELECT = f"SELECT global_seq, seq, ts_ms, schema_version, {_TEXTS}, chain FROM tape_journal"
_RANGE = "FROM tape_journal WHERE global_seq >= ? AND global_seq <= ?"
_SIZE = f"SELECT sum(octet_length(payload_json) + octet_length(subject) + octet_length(run_id)) {_RANGE}"


class DamagedRow(msgspec.Struct, frozen=True):
    """An entry that cannot be read, and its chain value if that can; or a range of them, up to `last`."""

    global_seq: int
    problem: Problem
    detail: str
    chain: bytes = b""
    last: int = 0


def describe(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def read_entries(reader: Reader, first: int, last: int) -> Iterator[Row | DamagedRow | int]:
    """The rows from one number to another, and after each window the number up to which it was read."""
    position = first
    while position <= last:
        end = fit_window(reader, position, min(position + WINDOW - 1, last))
        newest, has_rows = position - 1, False
        for row in _read(reader, position, end):
            if isinstance(row, DamagedRow):
                newest = max(newest, row.global_seq)
            else:
                has_rows = True
                newest = max(newest, row[0]) if isinstance(row[0], int) else newest
            yield row
        if has_rows:
            # A scan that ended early may have ended at a damaged number; one that starts behind it finds the rest.
            position = min(max(newest, position), end) + 1
        else:
            position, error = _next_number(reader, position, end, last)
            if error is not None and position - 1 > end:
                yield DamagedRow(end + 1, "unreadable", describe(error), last=min(position - 1, last))
        yield min(position - 1, last)


def read_windows(reader: Reader, first: int, last: int, entries: int) -> Iterator[tuple[int, int]]:
    """Ranges with so many entries at most; where that cannot be read, ranges of numbers."""
    position = first
    while position <= last:
        try:
            low, high = reader.query(
                "SELECT min(global_seq), max(global_seq) FROM (SELECT global_seq FROM tape_journal"
                f" WHERE global_seq >= ? AND global_seq <= ? ORDER BY global_seq LIMIT {entries}) AS entries",
                position,
                last,
            )[0]
        except UNAVAILABLE:
            raise
        except Exception:
            low, high = position, min(position + max(entries, (last - position) // 64), last)
        if not (isinstance(low, int) and isinstance(high, int)):
            return
        yield low, high
        position = max(high, position) + 1


def fit_window(reader: Reader, first: int, last: int, max_bytes: int | None = None) -> int:
    """The end of a window whose texts have 16 MiB at most, or as many bytes as are given, or that is one entry."""
    limit = WINDOW_BYTES if max_bytes is None else max_bytes
    while last > first:
        try:
            row = reader.one(_SIZE, first, last)
        except UNAVAILABLE:
            raise
        except Exception:
            return min(last, first + 15)
        if row is None or not isinstance(size := row[0], int | None) or (size or 0) <= limit:
            return last
        last = (first + last) // 2
    return last


def _read(reader: Reader, first: int, last: int) -> Iterator[Row | DamagedRow]:
    try:
        rows = reader.query(f"{_SELECT} WHERE global_seq >= ? AND global_seq <= ? ORDER BY global_seq", first, last)
    except UNAVAILABLE:
        raise
    except Exception as error:
        if first == last:
            yield _damaged(reader, first, error)
            return
        middle = (first + last) // 2
        yield from _read(reader, first, middle)
        yield from _read(reader, middle + 1, last)
        return
    yield from rows


def _damaged(reader: Reader, global_seq: int, error: Exception) -> DamagedRow:
    chain = b""
    try:
        row = reader.one("SELECT chain FROM tape_journal WHERE global_seq = ?", global_seq)
        if row is not None and isinstance(row[0], bytes | memoryview):
            chain = bytes(row[0])
    except UNAVAILABLE:
        raise
    except Exception:
        chain = b""
    if isinstance(cause := error.__cause__, UnicodeDecodeError):
        return DamagedRow(global_seq, "altered", f"a text is not UTF-8 ({cause.reason})", chain)
    return DamagedRow(global_seq, "unreadable", describe(error), chain)


def _next_number(reader: Reader, first: int, empty_until: int, last: int) -> tuple[int, Exception | None]:
    """The number to read next where a window has no entry, and the error that prevents to know the first one.

    A damaged tree can answer with a number that is too high, so the same is asked from further on too.
    """
    claim, error = _least(reader, empty_until + 1, last)
    width = empty_until - first + 1
    distance = width
    while (probe := empty_until + distance) <= min(last, (claim or last + 1) - 1):
        found, _ = _least(reader, probe, last)
        if found is not None and found < (claim or last + 1):
            # Halfway to what was found: the entries before it may be found from there.
            return empty_until + max(distance // 2, 1), error
        distance *= 2
    if claim is not None:
        return claim, None
    return empty_until + max(width, (last - empty_until) // 64), error


def _least(reader: Reader, first: int, last: int) -> tuple[int | None, Exception | None]:
    """The lowest number from `first` on, above `last` if there is none up to it; None if that cannot be read."""
    try:
        row = reader.one("SELECT min(global_seq) FROM tape_journal WHERE global_seq >= ?", first)
    except UNAVAILABLE:
        raise
    except Exception as error:
        return None, error
    found: Any = row[0] if row else None
    return (min(max(found, first), last + 1) if isinstance(found, int) else last + 1), None
