"""A journal that is filled in bulk, through the appender, and grows to the size that is asked for."""

from __future__ import annotations

from collections.abc import Callable

from bench.lab import draft
from tape.journal.appender import append
from tape.model.entry import Draft, checked
from tape.store import open_database

CHUNK = 10_000


def load_drafts(numbers: range) -> list[Draft]:
    """The entries of the load with these numbers."""
    return [checked(draft(number)) for number in numbers]


class GrowingJournal:
    """The journal of a store that was empty; `drafts` makes the entries of some numbers, the first of which is 0."""

    def __init__(self, store: str, drafts: Callable[[range], list[Draft]] = load_drafts) -> None:
        self.store = store
        self.entries = 0
        self._drafts = drafts
        open_database(store).migrate()

    def grow_to(self, entries: int, chunk: int = CHUNK) -> str:
        """The journal's store, with so many entries, committed `chunk` at a time."""
        from tape.pipeline.batch_writer import transact

        while self.entries < entries:
            upper = min(self.entries + chunk, entries)
            drafts = self._drafts(range(self.entries, upper))
            transact(self.store, lambda tx: append(tx, drafts))  # noqa: B023  (it runs at once)
            self.entries = upper
        return self.store
