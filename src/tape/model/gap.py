"""Gaps: numbers of the journal that a reader does not get an entry for, and why."""

from __future__ import annotations

from typing import Literal

import msgspec

from tape.errors import CursorDiverged, EntryDamaged

# damaged: an entry is not what was written, or cannot be read. missing: no entry has the number, and nothing says why.
# diverged: the number was given to an entry that the database lost; `tape_epochs` names the range.
GapReason = Literal["damaged", "missing", "diverged"]


class JournalGap(msgspec.Struct, frozen=True):
    """The numbers `first` to `last` of the journal, for which there is no entry to deliver."""

    first: int
    last: int
    reason: GapReason
    # How it shows; never what an entry says.
    detail: str = ""

    def is_passed_from(self, cursor: int) -> bool:
        """Whether a reader at a cursor goes on over the gap by default.

        A reader that is before a lost range misses nothing that it has seen: `journal.diverged` says what is gone.
        """
        return self.reason == "diverged" and cursor < self.first

    def to_error(self, cursor: int) -> EntryDamaged | CursorDiverged:
        """The error that ends the stream of a reader at a cursor."""
        if self.reason == "diverged":
            return CursorDiverged(cursor, self.first, self.last)
        return EntryDamaged(self.first, self.last, self.detail or self.reason)
