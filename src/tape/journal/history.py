"""The journal and its archive as one sequence: entries that retention removed are read from the archive."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import msgspec

from tape.errors import ArchiveDamaged, CursorBeyondHead, CursorExpired
from tape.journal.appender import Head, read_head
from tape.journal.epochs import NO_HOLES, Holes, read_holes
from tape.journal.reader import EVERYTHING, BatchLimit, Selection, Slice, has_run_from, position_before
from tape.model.entry import Entry
from tape.model.gap import JournalGap
from tape.model.grants import Grants
from tape.model.pattern import Pattern
from tape.store import Database, Reader

log = logging.getLogger(__name__)

T = TypeVar("T")

# An archive may be slow: reads of it must not occupy the threads of the database.
THREADS = 4
FIRST_WINDOW = 1_024
MAX_WINDOW = 200_000


class EntryFilter(msgspec.Struct, frozen=True):
    """A filter of entries: a subject pattern, the values that columns may have, and the subjects that are granted."""

    pattern: Pattern = Pattern("")
    values: Mapping[str, Collection[str]] = {}
    grants: Grants | None = None

    @classmethod
    def of_selection(cls, selection: Selection) -> EntryFilter:
        """The filter of a selection."""
        named = {"run_id": selection.run_id, "kind": selection.kind}
        values: dict[str, Collection[str]] = {name: [value] for name, value in named.items() if value}
        if selection.tenants is not None:
            values["tenant"] = list(selection.tenants)
        return cls(selection.pattern, values, selection.grants)

    @property
    def is_everything(self) -> bool:
        """Whether no entry is left out."""
        return not self.has_subjects and not self.values

    @property
    def has_subjects(self) -> bool:
        """Whether subjects matter."""
        return self.grants is not None or not self.pattern.matches_everything

    def matches_subject(self, subject: str) -> bool:
        """Whether entries of a subject pass."""
        return self.pattern.matches(subject) and (self.grants is None or self.grants.matches(subject))


class ArchivedPart(msgspec.Struct, frozen=True):
    """The wanted entries after one global_seq up to another that could be read, and gaps for the others, in order."""

    after: int
    until: int
    entries: list[Entry]
    gaps: tuple[JournalGap, ...] = ()


class Archive(Protocol):
    """Entries that retention removed. Its methods block, so they are called on threads of their own."""

    def extent(self, at_least: int = 0) -> range:
        """The entries that are archived; if they seem to end before `at_least`, it looks for newer ones."""

    def read(
        self, entry_filter: EntryFilter, after: int, until: int, limit: int, *, newest: bool = False
    ) -> list[Entry]:
        """The first wanted entries after one global_seq up to another, or the newest ones, in order.

        Raises ArchiveDamaged if a file is damaged: `salvage` reads the others.
        """

    def salvage(
        self, entry_filter: EntryFilter, after: int, until: int, limit: int, *, newest: bool = False
    ) -> ArchivedPart:
        """What can be read of the beginning of a range, or of its end, and gaps for what its damaged files had."""

    def position_before(self, ts_ms: int) -> int:
        """The global_seq just before the first archived entry at or after a time."""


class ArchiveCursor:
    """Reads filtered entries from an archive, in steps."""

    def __init__(self, archive: Archive, entry_filter: EntryFilter) -> None:
        self._archive = archive
        self._filter = entry_filter
        self._limit = BatchLimit()
        self._window = FIRST_WINDOW

    def read(self, after: int, head: Head, holes: Holes = NO_HOLES) -> Slice:
        """The next entries after a global_seq that was pruned. Raises CursorExpired if the archive lacks them."""
        if (resumes_at := holes.next_number(after + 1)) > after + 1:
            return Slice([], resumes_at - 1, head.global_seq, holes.gaps(after, resumes_at - 1))
        archived = self._archive.extent(at_least=head.oldest - 1)
        if after + 1 not in archived:
            raise CursorExpired(after, archived.start if after < archived.start - 1 else head.oldest)
        limit = self._limit.value
        until = min(archived.stop - 1, head.oldest - 1, after + self._window)
        until = min([until, *(hole.start - 1 for hole in holes if after < hole.start <= until)])
        try:
            entries = self._archive.read(self._filter, after, until, limit)
        except ArchiveDamaged:
            part = self._archive.salvage(self._filter, after, until, limit)
            return Slice(part.entries, part.until, head.global_seq, part.gaps)
        self._limit.adapt(entries)
        if len(entries) == limit:
            until = entries[-1].global_seq
            self._window = max(2 * (until - after), FIRST_WINDOW)
        else:
            self._window = min(4 * self._window, MAX_WINDOW)
        return Slice(entries, until, head.global_seq)


class History:
    """Everything that can be read: the journal of a database and, if there is one, its archive."""

    def __init__(self, database: Database, archive: Archive | None = None) -> None:
        self.database = database
        self.archive = archive
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="tape-archive") if archive else None
        self._verified_oldest = 0

    async def close(self) -> None:
        """Wait for what is being read."""
        if self._executor is not None:
            await asyncio.to_thread(self._executor.shutdown, wait=True, cancel_futures=True)

    async def read_oldest(self) -> int:
        """The first entry that can be read."""
        head = await self.database.read(read_head)
        archived = await self.archived_range(head)
        return min(archived.start, head.oldest) if archived else head.oldest

    async def resolve_start(self, after: int, selection: Selection = EVERYTHING, first_seq: int = 1) -> int:
        """The position that a cursor stands for; 0 is the oldest entry that can be read.

        If a run is selected that the journal has from `first_seq` on, that is an entry of the journal.
        """
        head = await self.database.read(read_head)
        if after > head.global_seq:
            raise CursorBeyondHead(after, head.global_seq)
        archived = await self.archived_range(head) if after < head.oldest - 1 else range(0)
        if after == 0:
            has_run = archived and selection.run_id and await self._has_run(selection, first_seq)
            return archived.start - 1 if archived and not has_run else head.oldest - 1
        if after < head.oldest - 1 and after + 1 not in archived:
            raise CursorExpired(after, archived.start if archived and after < archived.start else head.oldest)
        return after

    async def archived_range(self, head: Head) -> range:
        """The archived entries that are older than the journal's; empty if there are none."""
        archive = self.archive
        if archive is None or head.oldest == 1:
            return range(0)
        found = await self._run(lambda: archive.extent(at_least=head.oldest - 1))
        return range(found.start, min(found.stop, head.oldest))

    async def position_before(self, ts_ms: int) -> int:
        """The global_seq just before the first entry at or after a time, wherever that is."""
        head = await self.database.read(read_head)
        found = await self.database.read(lambda reader: position_before(reader, ts_ms))
        if found < head.oldest and (archived := await self.archived_range(head)):
            archive = self.archive
            assert archive is not None
            return min(await self._run(lambda: archive.position_before(ts_ms)), archived.stop - 1)
        return found

    async def read_expired(self, expired: CursorExpired, question: Callable[[Head, Holes], T]) -> T:
        """Run a query on the archive for entries that the journal lacks; without an archive, raise the error."""
        if self.archive is None:
            raise expired
        head, holes = await self.read_head_and_holes()
        await self._verify_seam(head, holes)
        return await self._run(lambda: question(head, holes))

    async def query_archive(self, question: Callable[[Archive, Holes], T]) -> T:
        """Run a query on the archive, on a thread of its own."""
        archive = self.archive
        assert archive is not None, "asked only where there is an archive"
        head, holes = await self.read_head_and_holes()
        await self._verify_seam(head, holes)
        return await self._run(lambda: question(archive, holes))

    async def read_head_and_holes(self) -> tuple[Head, Holes]:
        """The head of the journal, and the ranges of numbers that the database lost."""

        def read(reader: Reader) -> tuple[Head, Holes]:
            head = read_head(reader)
            return head, read_holes(reader, head)

        return await self.database.read(read)

    async def _has_run(self, selection: Selection, first_seq: int) -> bool:
        return await self.database.read(
            lambda reader: has_run_from(reader, selection.run_id, selection.tenants, first_seq)
        )

    def open_archive_cursor(self, entry_filter: EntryFilter) -> ArchiveCursor:
        """A cursor on the archive, for queries of `read_expired`."""
        assert self.archive is not None, "asked only where there is an archive"
        return ArchiveCursor(self.archive, entry_filter)

    async def _verify_seam(self, head: Head, holes: Holes) -> None:
        """Raise ArchiveDamaged unless the archive's last entry precedes this journal; checked once per prune."""
        if self._verified_oldest == head.oldest or head.oldest == 1:
            return
        archive, seam = self.archive, head.oldest - 1
        assert archive is not None
        seam = next((hole.start - 1 for hole in holes if seam in hole), seam)
        if seam in await self.archived_range(head):
            try:
                last = await self._run(lambda: archive.read(EntryFilter(), seam - 1, seam, 1))
            except ArchiveDamaged as error:  # readers name its file as a gap
                log.warning("entry %d of the archive cannot be compared with the journal: %s", seam, error)
                return
            if [entry.chain for entry in last] != [head.anchor]:
                raise ArchiveDamaged(
                    f"The archive's entry {seam} has the chain value {last[0].chain.hex() if last else 'of no entry'},"
                    f" the journal begins after {head.anchor.hex()}: it is another journal's archive."
                )
        self._verified_oldest = head.oldest

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)
