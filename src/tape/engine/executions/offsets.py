"""Records of a source that is read by offset become runs, each once, however often they are handed over.

What was taken is remembered as stretches of offsets, written in the transaction of the runs. So the memory of a part is
one row as long as nothing is left out, and it does not matter who hands over, in which pieces, or how often.
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
    """Offsets of one part of a subscription's source: from `begin` up to and without `end`."""

    subscription: str
    part: str
    begin: int
    end: int


class OffsetRecord(NamedTuple):
    """What stands at an offset: a request, the dead letter that stands for one, or why it cannot be a request."""

    offset: int
    wanted: ExecuteRequest | Draft | TapeError


# `taken` was taken before; `told` is a dead letter now; `held` stands behind one that was refused.
Outcome: TypeAlias = RunDispatchResult | TapeError | Literal["taken", "told", "held"]


class RangeResult(NamedTuple):
    """What became of each record, and the offset from which on nothing of the stretch was taken."""

    outcomes: list[Outcome]
    end: int


def checked_range(stretch: OffsetRange, offsets: Sequence[int]) -> OffsetRange:
    """The stretch, if it and the offsets of its records make sense; InvalidInput otherwise."""
    if not stretch.subscription or not stretch.part:
        raise InvalidInput("subscription and part must be given: they say whose offsets these are.")
    check_id("subscription", stretch.subscription)
    check_id("part", stretch.part)
    if not 0 <= stretch.begin <= stretch.end <= MAX_OFFSET:
        raise InvalidInput(f"begin {stretch.begin} and end {stretch.end} must be offsets, the first not the larger.")
    last = stretch.begin - 1
    for offset in offsets:
        if not last < offset < stretch.end:
            raise InvalidInput(
                f"offset {offset} is not in its place: offsets increase, from begin {stretch.begin} on and before"
                f" end {stretch.end}."
            )
        last = offset
    return stretch


def execute_range(tx: Transaction, stretch: OffsetRange, records: Sequence[OffsetRecord]) -> RangeResult:
    """Begin the runs of those records that were not taken before, in order, up to the first that is refused.

    A stretch without records is taken as well: there was nothing at its offsets.
    """
    known = _touching(tx, stretch)
    fresh = [record for record in records if not any(first <= record.offset < after for first, after in known)]
    given = _before_the_first_error(fresh)
    requests = [record.wanted for record in given if isinstance(record.wanted, ExecuteRequest)]
    results = iter(execute_batch(tx, requests, until_refused=True) if requests else ())
    outcomes: dict[int, Outcome] = {}
    end = stretch.end
    letters: list[Draft] = []
    for record in fresh:
        if isinstance(record.wanted, ExecuteRequest):
            outcome: Outcome = next(results)
        elif isinstance(record.wanted, Draft):
            letters.append(record.wanted)
            outcome = "told"
        else:
            outcome = record.wanted
        outcomes[record.offset] = outcome
        if isinstance(outcome, TapeError):
            end = record.offset
            break
    if letters:
        append(tx, letters)
    _remember(tx, stretch, end, known)
    missing: dict[bool, Outcome] = {True: "taken", False: "held"}
    new = {record.offset for record in fresh}
    return RangeResult([outcomes.get(each.offset, missing[each.offset not in new]) for each in records], end)


def executed_ranges(reader: Reader | Transaction, subscription: str) -> dict[str, list[tuple[int, int]]]:
    """What was taken of each part of a subscription's source: stretches in order, each without its end."""
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


def _touching(tx: Transaction, stretch: OffsetRange) -> list[tuple[int, int]]:
    """What was taken of the stretch, and right before and behind it."""
    rows = tx.query(
        "SELECT first_offset, next_offset FROM tape_taken"
        " WHERE subscription = ? AND part = ? AND first_offset <= ? AND next_offset >= ? ORDER BY first_offset",
        stretch.subscription,
        stretch.part,
        stretch.end,
        stretch.begin,
    )
    return [(first, after) for first, after in rows]


def _remember(tx: Transaction, stretch: OffsetRange, end: int, known: Sequence[tuple[int, int]]) -> None:
    if end == stretch.begin:
        return
    touching = [(first, after) for first, after in known if first <= end]
    first = min([stretch.begin, *(first for first, _ in touching)])
    after = max([end, *(after for _, after in touching)])
    if touching == [(first, after)]:
        return
    whose = (stretch.subscription, stretch.part)
    for old, _ in touching:
        if old != first:
            tx.execute("DELETE FROM tape_taken WHERE subscription = ? AND part = ? AND first_offset = ?", *whose, old)
    columns = ("subscription", "part", "first_offset", "next_offset")
    tx.upsert("tape_taken", columns[:3], columns, [(*whose, first, after)])
