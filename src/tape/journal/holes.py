"""Holes: numbers of the journal without an entry, other than those that `tape_epochs` names."""

from __future__ import annotations

from collections.abc import Iterable

from tape.errors import CursorExpired
from tape.journal.appender import read_head
from tape.journal.epochs import read_holes
from tape.model.gap import JournalGap
from tape.store import Reader

MISSING = "there is no such entry, and nothing says why"


def find_missing(reader: Reader, after: int, position: int, numbers: Iterable[int]) -> list[JournalGap]:
    """Gaps for the numbers after one up to another that are not among those which were read.

    Raises CursorExpired if retention has removed the first of them meanwhile.
    """
    head = read_head(reader)
    if after < head.oldest - 1:
        raise CursorExpired(after, head.oldest)
    known = [(number, number) for number in numbers]
    known += [(hole.start, hole.stop - 1) for hole in read_holes(reader, head)]
    gaps = []
    for first, last in sorted([*known, (position + 1, position + 1)]):
        if first > position + 1:
            break
        if first > after + 1:
            gaps.append(JournalGap(after + 1, first - 1, "missing", MISSING))
        after = max(after, last)
    return gaps
