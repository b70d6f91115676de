"""Gaps on streams of single entries: each is named by the next entry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from tape.engine.fanout.subscription import Batch
from tape.model.entry import Entry
from tape.model.gap import JournalGap

# More gaps than this before one entry are named as one range.
MAX_WAITING = 1_000


class WaitingGaps:
    """The gaps of one stream that no entry has named yet."""

    def __init__(self) -> None:
        self._gaps: list[JournalGap] = []

    def pair(self, batch: Batch) -> Iterator[tuple[Entry, Sequence[JournalGap]]]:
        """The entries of a batch, each with the gaps just before it."""
        if not batch.gaps and not self._gaps:
            for entry in batch.entries:
                yield entry, ()
            return
        self._gaps += batch.gaps
        for entry in batch.entries:
            before = [gap for gap in self._gaps if gap.first < entry.global_seq]
            del self._gaps[: len(before)]
            yield entry, before
        if len(self._gaps) > MAX_WAITING:
            merged = msgspec.structs.replace(self._gaps[MAX_WAITING - 1], last=self._gaps[-1].last)
            self._gaps[MAX_WAITING - 1 :] = [merged]
