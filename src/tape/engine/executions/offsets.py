"""Executions of records from a source that is read by offset: each record starts one run, however often it is sent.

Executed offsets are stored as ranges, in the transaction of the runs. A partition without gaps has one row. Ranges can
be sent by any process, in any pieces, any number of times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from tape.engine.executions.execute import ExecuteRequest, execute_batch
from tape.errors import InvalidInput, TapeError
from tape.journal.appender import append
from tape.model.dispatch_result import RunDispatchResult
from tape.model.entry import Draft, check_id
from tape.store import Reader, Transaction

MAX_OFFSET = (1 << 63) - 1


class OffsetRange(msgspec.Struct, frozen=True):
    """Offsets of one partition (`part`) of a subscription's source: from `begin`, exclusive of `end`."""

    subscription: str
    part: str
    begin: int
    end: int


class OffsetRecord(NamedTuple):
    """The record of an offset: a request, a dead letter in its stead, or the error of an invalid request."""

    offset: int
    wanted: ExecuteRequest | Draft | TapeError


# Statuses of POST /api/taken: `taken`: executed before; `told`: now a dead letter; `held`: after an error. vocabulary:
Outcome: TypeAlias = RunDispatchResult | TapeError | Literal["taken", "told", "held"]  # vocabulary: wire


class RangeResult(NamedTuple):
    """The outcome of each record, and the first offset that was not executed."""

    outcomes: list[Outcome]
    end: int


def checked_range(range_: OffsetRange, offsets: Sequence[int]) -> OffsetRange:
    """The range, if it and the offsets of its records are valid. Raises InvalidInput otherwise."""
    if not range_.subscription or not range_.part:
        raise InvalidInput("subscription and part are required.")
    check_id("subscription", range_.subscription)
    check_id("part", range_.part)
    if not 0 <= range_.begin <= range_.end <= MAX_OFFSET:
        raise InvalidInput(f"begin {range_.begin} and end {range_.end} must be offsets, the first not the larger.")
    last = range_.begin - 1
    for offset in offsets:
        if not last < offset < range_.end:
            raise InvalidInput(
                f"offset {offset} is out of order: offsets increase, from begin {range_.begin} on and before"
                f" end {range_.end}."
            )
        last = offset
    return range_


def execute_range(tx: Transaction, range_: OffsetRange, records: Sequence[OffsetRecord]) -> RangeResult:
    """Start the runs of records that were not executed before, in order, up to the first error.

    A range without records counts as executed: its offsets are empty.
    """
    known = _adjacent_ranges(tx, range_)
    fresh = [record for record in records if not any(first <= record.offset < after for first, after in known)]
    given = _before_the_first_error(fresh)
    requests = [record.wanted for record in given if isinstance(record.wanted, ExecuteRequest)]
    results = iter(execute_batch(tx, requests, until_refused=True) if requests else ())
    outcomes: dict[int, Outcome] = {}
    end = range_.end
    dead_letters: list[Draft] = []
    for record in fresh:
        if isinstance(record.wanted, ExecuteRequest):
            outcome: Outcome = next(results)
        elif isinstance(record.wanted, Draft):
            dead_letters.append(record.wanted)
            outcome = "told"  # vocabulary: a status of POST /api/taken
        else:
            outcome = record.wanted
        outcomes[record.offset] = outcome
        if isinstance(outcome, TapeError):
            end = record.offset
            break
    if dead_letters:
        append(tx, dead_letters)
    _store_range(tx, range_, end, known)
    missing: dict[bool, Outcome] = {True: "taken", False: "held"}
    new = {record.offset for record in fresh}
    return RangeResult([outcomes.get(each.offset, missing[each.offset not in new]) for each in records], end)


def executed_ranges(reader: Reader | Transaction, subscription: str) -> dict[str, list[tuple[int, int]]]:
    """The executed ranges of each partition of a subscription's source, in order; ends are exclusive."""
    rows = reader.query(
        "SELECT part, first_offset, next_offset FROM tape_taken WHERE subscription = ? ORDER BY part, first_offset",
        subscription,
    )
    found: dict[str, list[tuple[int, int]]] = {}
    for part, first, after in rows:
        found.setdefault(part, []).append((first, after))
    return found


def _before_the_first_error(records: Sequence[OffsetRecord]) -> Sequence[OffsetRecord]:
    for index, record in enumerate(records):
        if isinstance(record.wanted, TapeError):
            return records[:index]
    return records


def _adjacent_ranges(tx: Transaction, range_: OffsetRange) -> list[tuple[int, int]]:
    """The executed ranges that overlap a range or are adjacent to it."""
    rows = tx.query(
        "SELECT first_offset, next_offset FROM tape_taken"
        " WHERE subscription = ? AND part = ? AND first_offset <= ? AND next_offset >= ? ORDER BY first_offset",
        range_.subscription,
        range_.part,
        range_.end,
        range_.begin,
    )
    return [(first, after) for first, after in rows]


def _store_range(tx: Transaction, range_: OffsetRange, end: int, known: Sequence[tuple[int, int]]) -> None:
    if end == range_.begin:
        return
    adjacent = [(first, after) for first, after in known if first <= end]
    first = min([range_.begin, *(first for first, _ in adjacent)])
    after = max([end, *(after for _, after in adjacent)])
    if adjacent == [(first, after)]:
        return
    whose = (range_.subscription, range_.part)
    for old, _ in adjacent:
        if old != first:
            tx.execute("DELETE FROM tape_taken WHERE subscription = ? AND part = ? AND first_offset = ?", *whose, old)
    columns = ("subscription", "part", "first_offset", "next_offset")
    tx.upsert("tape_taken", columns[:3], columns, [(*whose, first, after)])
