"""The stores that `growth` measures: one journal that grows, with runs and values, and a copy of it for each size."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from bench.fill import CHUNK, insert_rows, run_id, settle, table_columns
from bench.growing import GrowingJournal
from bench.lab import Lab
from bench.load import PREPARED, event
from tape.engine.ledgers.counts import fold
from tape.model.entry import Draft, checked
from tape.model.payload import to_json
from tape.store import open_database

ENTRIES_PER_RUN = 10
# Entries of one rare subject, spread evenly over all the entries that a size has more than the one before.
RARE = 8
FILL_CHUNK = 50_000
# Larger stores are not copied for each measurement.
MAX_COPIED = 1_000_000


@dataclass(frozen=True)
class FilledStore:
    """A store of one size, which no process has open."""

    url: str
    entries: int

    @property
    def runs(self) -> int:
        """How many runs it has, and how many values."""
        return self.entries // ENTRIES_PER_RUN

    @property
    def rare_subject(self) -> str:
        """A subject that only a few of its entries have."""
        return rare_subject(self.entries)

    @contextlib.contextmanager
    def opened(self, lab: Lab) -> Iterator[str]:
        """The URL of a store to measure on: a copy, or a large store itself, to which a load adds little."""
        if self.entries > MAX_COPIED:
            yield self.url
            return
        url = lab.copy_store(self.url)
        try:
            yield url
        finally:
            lab.remove_store(url)


def rare_subject(entries: int) -> str:
    """The rare subject that is looked up in a store of that size."""
    return f"/tape/rare/seen/{entries}"


@contextlib.contextmanager
def grown_stores(lab: Lab, kind: str, sizes: tuple[int, ...]) -> Iterator[list[FilledStore]]:
    """A store of each size, smallest first; each has the entries of the one before, and more."""
    growing = _GrowingStore(lab, lab.fresh_store(kind))
    stores = []
    try:
        for size in sizes:
            growing.grow_to(size)
            stores.append(FilledStore(growing.url if size == sizes[-1] else lab.copy_store(growing.url), size))
        yield stores
    finally:
        for url in {growing.url, *(store.url for store in stores)}:
            lab.remove_store(url)


class _GrowingStore:
    """Entries of the load in runs of ten, and for each run a row in the tables of runs and of values."""

    def __init__(self, lab: Lab, url: str) -> None:
        self.url = url
        self._lab = lab
        # Checked once: but for their runs, the entries of a journal repeat after ten thousand.
        self._prepared = [checked(_draft(number)) for number in range(PREPARED)]
        self._rare: dict[int, Draft] = {}
        self._journal = GrowingJournal(url, self._drafts)
        self._first = self._entries = 0
        lab.run(_fold(url))  # the witness begins with the journal

    def grow_to(self, entries: int) -> None:
        """Fill the store up to so many entries."""
        self._first, self._entries = self._journal.entries, entries
        apart = (entries - self._first) // RARE
        rare = msgspec.structs.replace(self._prepared[0], subject=rare_subject(entries), kind="")
        self._rare = dict.fromkeys(range(self._first + apart // 2, entries, apart), checked(rare))
        self._journal.grow_to(entries, FILL_CHUNK)
        self._lab.run(_fold(self.url))
        self._fill_ledgers()

    def _drafts(self, numbers: range) -> list[Draft]:
        first, rows = self._first // ENTRIES_PER_RUN, (self._entries - self._first) // ENTRIES_PER_RUN
        drafts = []
        for number in numbers:
            like = self._rare.get(number) or self._prepared[number % PREPARED]
            run = run_id(number // ENTRIES_PER_RUN, rows, first)
            drafts.append(Draft(subject=like.subject, kind=like.kind, payload_json=like.payload_json, run_id=run))
        return drafts

    def _fill_ledgers(self) -> None:
        first, end = self._first // ENTRIES_PER_RUN, self._entries // ENTRIES_PER_RUN
        connection = open_database(self.url).connect()
        try:
            began_ms = time.time_ns() // 1_000_000 - end
            columns = table_columns(connection.dialect, end - first, began_ms, first=first, seq=ENTRIES_PER_RUN)
            wanted = {table: columns[table] for table in ("tape_runs", "tape_values")}
            for start in range(first, end, CHUNK):
                connection.begin()
                insert_rows(connection, wanted, start, min(start + CHUNK, end))
                connection.commit()
            settle(connection)
        finally:
            connection.close()


def _draft(number: int) -> Draft:
    """An entry of the load with the time of its making, by which readers of the HTTP stream count."""
    subject, _, payload = event(number)
    return Draft(subject=subject, payload_json=to_json({"sent_ns": time.monotonic_ns(), **payload}))


async def _fold(url: str) -> None:
    """Count the entries, as servers have done long before a journal has so many."""
    async with open_database(url) as database:
        while await fold(database):
            pass
