"""The chain over a range of entries, followed in the same way when they are copied and when they are restored."""

from __future__ import annotations

from collections.abc import Sequence

from tape.backup.manifest import Damage
from tape.journal.appender import Head
from tape.journal.epochs import Epoch
from tape.model.chain import TEXTS, canonical, link
from tape.store.connection import Row

Range = tuple[int, int]

_NUMBERS = ("global_seq", "seq", "ts_ms", "schema_version")
REQUIRED = (*_NUMBERS, *TEXTS, "chain")


def entry_ranges(head: Head, epochs: Sequence[Epoch]) -> list[Range]:
    """The ranges of numbers that the entries of a journal have: one for each epoch, pruned entries included."""
    ranges, start = [], 1
    for epoch in epochs:
        if epoch.cut_after >= start:
            ranges.append((start, epoch.cut_after))
        start = epoch.resumes_at
    if head.global_seq >= start:
        ranges.append((start, head.global_seq))
    return ranges


def clip_ranges(ranges: Sequence[Range], first: int, last: int) -> list[Range]:
    """What ranges have in common with one."""
    return [(max(low, first), min(high, last)) for low, high in ranges if low <= last and high >= first]


class ChainFollower:
    """Follows the chain over the entries of ranges, in order, and notes what is missing or altered.

    After an altered entry either its stored or its recomputed chain value may be the true one: the next entry is
    accepted if it fits one of them, so one change is noted once.
    """

    def __init__(self, ranges: Sequence[Range], before: bytes) -> None:
        self._ranges = list(ranges)
        self._previous: tuple[bytes, ...] = (before,)
        self.damage: list[Damage] = []
        self.chain = before

    def set_columns(self, columns: Sequence[str]) -> None:
        """Set the columns that the next rows have."""
        self._numbers = [columns.index(name) for name in _NUMBERS]
        self._texts = [columns.index(name) for name in TEXTS]
        self._chain = columns.index("chain")

    def check(self, row: Row) -> None:
        """Follow the chain over one entry."""
        global_seq, seq, ts_ms, schema_version = (row[index] for index in self._numbers)
        chain = row[self._chain]
        if not self._advance(global_seq):
            self.damage.append(Damage(global_seq, global_seq, "has a number that no entry of its journal has"))
            return
        try:
            sealed = canonical(global_seq, seq, ts_ms, schema_version, [row[index] for index in self._texts])
        except Exception:
            self._note_altered(global_seq)
            self._previous = (chain,)
        else:
            expected = [link(previous, sealed) for previous in self._previous]
            if expected and chain not in expected:
                self._note_altered(global_seq)
                self._previous = (chain, *expected)
            else:
                self._previous = (chain,)
        self.chain = chain

    def finish(self) -> None:
        """Note what is missing at the end."""
        while self._ranges:
            self._note_missing(*self._ranges.pop(0))

    @property
    def next(self) -> int | None:
        """The number of the next entry; None after the last."""
        return self._ranges[0][0] if self._ranges else None

    def _advance(self, global_seq: int) -> bool:
        """Take a number from the ranges, and note those before it as missing; False if the ranges lack it."""
        if not any(low <= global_seq <= high for low, high in self._ranges):
            return False
        while self._ranges[0][1] < global_seq:
            self._note_missing(*self._ranges.pop(0))
        low, high = self._ranges[0]
        if low < global_seq:
            self._note_missing(low, global_seq - 1)
        if global_seq == high:
            self._ranges.pop(0)
        else:
            self._ranges[0] = (global_seq + 1, high)
        return True

    def _note_missing(self, first: int, last: int) -> None:
        self.damage.append(Damage(first, last, "missing or unreadable"))
        self._previous = ()

    def _note_altered(self, global_seq: int) -> None:
        self.damage.append(Damage(global_seq, global_seq, "altered"))
