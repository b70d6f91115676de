"""Damage: ranges of the journal that are not what was written, each recorded and journaled once.

`tape_damage` holds what readers and the scrubber met. Ranges that touch are one row, and there are 10,000 rows at most.
Each new range is journaled as `journal.damaged`, 100 an hour at most: the last of them says that more may follow.
"""

from __future__ import annotations

import msgspec

from tape.journal.appender import Appender
from tape.journal.key_index import look_up_subject
from tape.model import subject
from tape.model.entry import MAX_SEQ, Draft, checked
from tape.model.gap import JournalGap
from tape.store import Reader, Transaction

MAX_RANGES = 10_000
MAX_ENTRIES_PER_HOUR = 100
MAX_DETAIL = 500
_HOUR_MS = 3_600_000
_COLUMNS = ("first", "last", "problem", "detail", "seen_ms")


class DamagedRange(msgspec.Struct, frozen=True):
    """Entries `first` to `last` are not what was written: they are damaged, or missing."""

    first: int
    last: int
    problem: str
    detail: str
    seen_ms: int


def record_damage(tx: Transaction, *gaps: JournalGap) -> int:
    """Record gaps and journal the new ones; how many are new.

    A gap that `tape_epochs` explains is not damage. With 10,000 ranges, only what touches one of them is recorded.
    """
    appender = tx.enlist(Appender)
    left = MAX_ENTRIES_PER_HOUR - _journaled_within_hour(tx, appender.ts_ms)
    new = [gap for gap in gaps if gap.reason != "diverged" and _insert(tx, gap, appender.ts_ms)]
    for gap in new[: max(left, 0)]:
        left -= 1
        facts = {
            "first": gap.first,
            "last": gap.last,
            "problem": gap.reason,
            "detail": gap.detail[:MAX_DETAIL],
            "more": left == 0,
        }
        payload = msgspec.json.encode(facts).decode()
        appender.append([checked(Draft(subject=subject.journal_damaged(), run_id="journal", payload_json=payload))])
    return len(new)


def _insert(tx: Transaction, gap: JournalGap, ts_ms: int) -> bool:
    """Insert a range, or extend the ones that it touches; False if it is known or there are too many."""
    touching = _ranges(tx, "WHERE first <= ? AND last >= ?", gap.last + 1, gap.first - 1)
    first = min([gap.first, *(each.first for each in touching)])
    last = max([gap.last, *(each.last for each in touching)])
    known = sum(each.last - each.first + 1 for each in touching)
    if known == last - first + 1 or (not touching and _is_full(tx)):
        return False
    for each in touching:
        tx.execute("DELETE FROM tape_damage WHERE first = ?", each.first)
    tx.insert("tape_damage", _COLUMNS, [(first, last, gap.reason, gap.detail[:MAX_DETAIL], ts_ms)])
    return True


def clear_damage(tx: Transaction, first: int, last: int) -> None:
    """Remove what is recorded about entries that were found to be whole, or that retention removed."""
    for each in _ranges(tx, "WHERE first <= ? AND last >= ?", last, first):
        tx.execute("DELETE FROM tape_damage WHERE first = ?", each.first)
        rest = [(each.first, first - 1), (last + 1, each.last)]
        rows = [(low, high, each.problem, each.detail, each.seen_ms) for low, high in rest if low <= high]
        if rows:
            tx.insert("tape_damage", _COLUMNS, rows)


def read_damage(reader: Reader | Transaction, limit: int = MAX_RANGES) -> list[DamagedRange]:
    """The ranges that are recorded, in the order of the journal."""
    return _ranges(reader, "ORDER BY first LIMIT ?", limit)


def read_damage_between(reader: Reader | Transaction, first: int, last: int) -> list[DamagedRange]:
    """The recorded ranges that have an entry from one number to another."""
    return _ranges(reader, "WHERE first <= ? AND last >= ? ORDER BY first", last, first)


def count_damaged(reader: Reader | Transaction) -> int:
    """How many entries are recorded as damaged or missing."""
    row = reader.one("SELECT coalesce(sum(last - first + 1), 0) FROM tape_damage")
    return int(row[0]) if row else 0


def _ranges(reader: Reader | Transaction, condition: str, *params: int) -> list[DamagedRange]:
    rows = reader.query(f"SELECT {', '.join(_COLUMNS)} FROM tape_damage {condition}", *params)
    return [DamagedRange(*row) for row in rows]


def _is_full(tx: Transaction) -> bool:
    row = tx.one("SELECT count(*) FROM tape_damage")
    return row is not None and row[0] >= MAX_RANGES


def _journaled_within_hour(tx: Transaction, now_ms: int) -> int:
    lookup = look_up_subject(subject.journal_damaged())
    latest = lookup.select(tx, "ts_ms", 0, MAX_SEQ, MAX_ENTRIES_PER_HOUR, newest=True)
    return sum(ts_ms > now_ms - _HOUR_MS for (ts_ms,) in latest)
