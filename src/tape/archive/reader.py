"""Reading of the archive by servers: filtered entries, from the files that can have them.

Tables and footers are cached for later reads, up to 128 MiB and 2,048 files.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from tape.archive.files import ArchiveFile, RowGroup, files_in_range, in_range, read_footer, read_group
from tape.archive.location import resolve_url
from tape.archive.table import ArchiveTable
from tape.errors import ArchiveDamaged, ArchiveUnreachable, PipelineInput
from tape.journal.appender import Head
from tape.journal.history import ArchivedPart, EntryFilter
from tape.model.entry import Entry
from tape.model.gap import GapReason, JournalGap
from tape.store.tail import Tail

log = logging.getLogger(__name__)

T = TypeVar("T")

CACHE_BYTES = 128 << 20
CACHED_FOOTERS = 2_048
# What one salvage examines and names at most.
SALVAGE_WINDOW = 10_000
MAX_GAPS = 1_000
UNREADABLE = "a file of the archive is damaged; see: tape verify --archive"
ABSENT = "no file of the archive has it; see: tape verify --archive"
_ENTRY = Entry.__struct_fields__


class ArchiveReader:
    """The archive at a URL, which need not exist yet. Thread-safe."""

    def __init__(self, url: str, options: Mapping[str, str] | None = None) -> None:
        self.url = resolve_url(url)
        self._options = options
        self._archive: ArchiveTable | None = None
        self._files: list[ArchiveFile] = []
        self._extent = range(0)
        self._lock = threading.Lock()
        self._tables: OrderedDict[tuple[Any, ...], pa.Table] = OrderedDict()
        self._table_bytes = 0
        self._footers: OrderedDict[str, tuple[pq.FileMetaData, list[RowGroup]]] = OrderedDict()

    def extent(self, at_least: int = 0) -> range:
        """The entries that are archived; if they seem to end before `at_least`, it looks for newer ones."""
        if self._archive is None or self._extent.stop <= at_least:
            self._look()
        return self._extent

    def read(
        self, entry_filter: EntryFilter, after: int, until: int, limit: int, *, newest: bool = False
    ) -> list[Entry]:
        """The first wanted entries after one global_seq up to another, or the newest ones, in order.

        Raises ArchiveDamaged if a file cannot be read, or entries that must be there are not.
        """
        return self._trying(lambda: self._read(entry_filter, after, until, limit, newest))

    def salvage(
        self, entry_filter: EntryFilter, after: int, until: int, limit: int, *, newest: bool = False
    ) -> ArchivedPart:
        """What can be read of the beginning of a range, or of its end, and gaps for what its damaged files had.

        Raises ArchiveUnreachable if the archive does not answer: that is not damage.
        """
        self._require_reachable()
        span = limit if entry_filter.is_everything else SALVAGE_WINDOW
        part = range(max(after, until - span), until) if newest else range(after, min(until, after + span))
        return self._salvage(entry_filter, part.start, part.stop, limit, newest)

    def position_before(self, ts_ms: int) -> int:
        """The global_seq just before the first archived entry at or after a time."""
        return self._trying(lambda: self._position_before(ts_ms))

    def newer_tail(self, head: Head) -> Tail | None:
        """The last archived entry of this journal, if the journal ends before it: it lost its tail.

        An archive that does not have the newest entry of the journal belongs to another one, and proves nothing.
        """
        until = self.extent(head.global_seq + 1).stop - 1
        if self._archive is None or not 0 < head.global_seq < until:
            return None
        if self._archive.chain_at(head.global_seq) != head.chain:
            log.warning(
                "the archive at %s ends at %d, the journal at %d, and it lacks that entry: it is of another journal",
                self.url,
                until,
                head.global_seq,
            )
            return None
        chain = self._archive.chain_at(until)
        return Tail(head.journal_id, head.epoch, until, chain) if chain is not None else None

    # ── the table ────────────────────────────────────────────────────────────────────────────────

    def _look(self) -> None:
        with self._lock:
            try:
                if self._archive is None:
                    self._archive = ArchiveTable.open(self.url, self._options)
                else:
                    self._archive.refresh()
            except PipelineInput as error:
                log.warning("%s", error)
                return
            except (DeltaError, OSError) as error:
                raise ArchiveUnreachable(f"The archive at {self.url} cannot be reached: {error}") from error
            self._files = self._archive.files()
            self._extent = range(self._archive.begin, self._archive.until + 1)

    def _trying(self, work: Callable[[], T]) -> T:
        """Do it again with what the table has now, if a file went: it may have been replaced by another."""
        files = self._files
        try:
            return work()
        except ArchiveDamaged:
            self._look()
            if self._files == files:
                raise
            return work()

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    def _read(self, entry_filter: EntryFilter, after: int, until: int, limit: int, newest: bool) -> list[Entry]:
        if entry_filter.is_everything:  # global_seqs have no gaps, so the last one is known
            after, until = (max(after, until - limit), until) if newest else (after, min(until, after + limit))
        rows = [
            (group, self._rows(group, entry_filter, after, until)) for group in self._groups(entry_filter, after, until)
        ]
        numbers = sorted(number for _, found in rows for number in found)
        if entry_filter.is_everything and len(numbers) != until - after:
            raise ArchiveDamaged(
                f"The archive has {len(numbers)} of the {until - after} entries from {after + 1} to {until}."
                f" See: tape verify --lake {self.url}"
            )
        chosen = numbers[-limit:] if newest else numbers[:limit]
        if not chosen:
            return []
        low, high = chosen[0], chosen[-1]
        tables = []
        for group, found in rows:
            indices = [row for number, row in found.items() if low <= number <= high]
            if indices:
                tables.append(self._columns(group, _ENTRY).take(indices))
        columns = pa.concat_tables(tables).sort_by("global_seq").columns
        return list(map(Entry, *(column.to_pylist() for column in columns)))

    def _groups(self, entry_filter: EntryFilter, after: int, until: int) -> list[RowGroup]:
        kinds = kinds_of(entry_filter)
        found = []
        for file in files_in_range(self._files, after, until):
            if kinds is None or file.kind in kinds:
                _, groups = self._footer(file)
                found += [group for group in groups if group.last > after and group.first <= until]
        return found

    def _rows(self, group: RowGroup, entry_filter: EntryFilter, after: int, until: int) -> dict[int, int]:
        """The wanted entries of a group, and the rows that they are in."""
        tested = {name: values for name, values in entry_filter.values.items() if name != "kind"}
        has_subjects = entry_filter.has_subjects
        names = ("global_seq", *tested, *(("subject",) if has_subjects else ()))
        table = self._columns(group, names)
        mask = in_range(table, after, until)
        for name, values in tested.items():
            mask = pc.and_(mask, pc.is_in(table.column(name), pa.array(values, pa.string())))
        if has_subjects:
            mask = pc.and_(mask, _matching_subjects(table.column("subject"), entry_filter))
        rows = pc.indices_nonzero(mask)
        return dict(zip(table.column("global_seq").take(rows).to_pylist(), rows.to_pylist(), strict=True))

    def _salvage(self, entry_filter: EntryFilter, after: int, until: int, limit: int, newest: bool) -> ArchivedPart:
        kinds = kinds_of(entry_filter)
        present: set[int] = set()
        unreadable: set[int] = set()
        wanted: dict[int, Entry] = {}
        for file in files_in_range(self._files, after, until):
            try:
                for group in self._footer(file)[1]:
                    if group.last > after and group.first <= until:
                        numbers, entries = self._salvage_group(group, entry_filter, after, until, kinds)
                        present |= numbers
                        wanted |= entries
            except ArchiveDamaged as error:
                log.warning("entries %d to %d of the archive: %s", file.first, file.last, error)
                if kinds is None or file.kind in kinds:
                    unreadable.update(range(max(file.first, after + 1), min(file.last, until) + 1))
        # Files of other kinds have some of the numbers between the first and the last of a damaged file.
        absent = set(range(after + 1, until + 1)) if entry_filter.is_everything else unreadable
        gaps = _to_gaps(sorted(absent - present), unreadable)
        return _cut(ArchivedPart(after, until, [wanted[number] for number in sorted(wanted)], gaps), limit, newest)

    def _salvage_group(
        self, group: RowGroup, entry_filter: EntryFilter, after: int, until: int, kinds: set[str] | None
    ) -> tuple[set[int], dict[int, Entry]]:
        """The numbers of a group within a range, and the wanted entries."""
        numbers = self._columns(group, ("global_seq",))
        present = set(numbers.filter(in_range(numbers, after, until)).column("global_seq").to_pylist())
        if kinds is not None and group.file.kind not in kinds:
            return present, {}
        rows = self._rows(group, entry_filter, after, until)
        columns = self._columns(group, _ENTRY).take(list(rows.values())).columns if rows else []
        return present, dict(
            zip(rows, map(Entry, *(column.to_pylist() for column in columns)), strict=True)
        ) if rows else {}

    def _require_reachable(self) -> None:
        """Raise ArchiveUnreachable if the folder of the archive is gone, or its store does not answer."""
        try:
            is_there = self._filesystem.get_file_info("_delta_log").type != pa.fs.FileType.NotFound
        except OSError as silence:
            raise ArchiveUnreachable(f"The archive at {self.url} cannot be reached: {silence}") from silence
        if not is_there:
            raise ArchiveUnreachable(f"The archive at {self.url} cannot be reached: there is no table.")

    def _position_before(self, ts_ms: int) -> int:
        self.extent()
        found = self._extent.start - 1
        for file in self._files:
            if file.last_ms < ts_ms:
                found = max(found, file.last)
            elif file.first_ms < ts_ms and file.last > found:
                try:
                    found = max(found, self._last_before(file, found, ts_ms))
                except ArchiveDamaged:  # a reader begins earlier, and meets the gap
                    self._require_reachable()
        return found

    def _last_before(self, file: ArchiveFile, found: int, ts_ms: int) -> int:
        for group in self._footer(file)[1]:
            if group.last > found:
                table = self._columns(group, ("global_seq", "ts_ms"))
                older = table.column("global_seq").filter(pc.less(table.column("ts_ms"), ts_ms))
                found = max(found, pc.max(older).as_py() or 0)
        return found

    # ── what is kept ─────────────────────────────────────────────────────────────────────────────

    def _footer(self, file: ArchiveFile) -> tuple[pq.FileMetaData, list[RowGroup]]:
        with self._lock:
            if (footer := self._footers.get(file.path)) is not None:
                self._footers.move_to_end(file.path)
                return footer
        footer = read_footer(self._filesystem, file)
        with self._lock:
            self._footers[file.path] = footer
            while len(self._footers) > CACHED_FOOTERS:
                self._footers.popitem(last=False)
        return footer

    def _columns(self, group: RowGroup, names: Sequence[str]) -> pa.Table:
        key = (group.file.path, group.number, *names)
        with self._lock:
            if (table := self._tables.get(key)) is not None:
                self._tables.move_to_end(key)
                return table
        table = read_group(self._filesystem, self._footer(group.file)[0], group, names)
        with self._lock:
            if key not in self._tables:
                self._tables[key] = table
                self._table_bytes += table.nbytes
            while self._table_bytes > CACHE_BYTES:
                _, oldest = self._tables.popitem(last=False)
                self._table_bytes -= oldest.nbytes
        return table

    @property
    def _filesystem(self) -> Any:
        assert self._archive is not None, "there are files, so there is a table"
        return self._archive.filesystem


def _to_gaps(absent: Sequence[int], unreadable: set[int]) -> tuple[JournalGap, ...]:
    """The numbers as ranges: of damaged files, or of none."""
    gaps: list[JournalGap] = []
    for number in absent:
        is_damaged = number in unreadable
        reason: GapReason = "damaged" if is_damaged else "missing"
        first = number
        if gaps and gaps[-1].last == number - 1 and gaps[-1].reason == reason:
            first = gaps.pop().first
        gaps.append(JournalGap(first, number, reason, UNREADABLE if is_damaged else ABSENT))
    return tuple(gaps)


def _cut(part: ArchivedPart, limit: int, newest: bool) -> ArchivedPart:
    """The beginning or the end of a part, with `limit` entries and 1,000 gaps at most."""
    after, until = part.after, part.until
    if newest:
        if len(part.entries) > limit:
            after = part.entries[-limit].global_seq - 1
        if len(part.gaps) > MAX_GAPS:
            after = max(after, part.gaps[-MAX_GAPS].first - 1)
    else:
        if len(part.entries) > limit:
            until = part.entries[limit - 1].global_seq
        if len(part.gaps) > MAX_GAPS:
            until = min(until, part.gaps[MAX_GAPS - 1].last)
    entries = [entry for entry in part.entries if after < entry.global_seq <= until]
    return ArchivedPart(
        after, until, entries, tuple(gap for gap in part.gaps if after < gap.first and gap.last <= until)
    )


def kinds_of(entry_filter: EntryFilter) -> set[str] | None:
    """The kinds that the filtered entries can have; None is any."""
    kinds = set(entry_filter.values["kind"]) if "kind" in entry_filter.values else None
    segments = entry_filter.pattern.segments
    if len(segments) > 1 and isinstance(kind := segments[1], str):
        return {kind} if kinds is None else kinds & {kind}
    return kinds


def _matching_subjects(subjects: pa.ChunkedArray, entry_filter: EntryFilter) -> pa.ChunkedArray:
    """The mask of subjects that match; the filter is evaluated once per distinct subject."""
    coded = subjects.combine_chunks().dictionary_encode()
    fits = pa.array([entry_filter.matches_subject(subject) for subject in coded.dictionary.to_pylist()], pa.bool_())
    return fits.take(coded.indices)
