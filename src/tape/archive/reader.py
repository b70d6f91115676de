"""The archive as servers read it: a few wanted entries at a time, from the files that can have them.

What was read is kept for the next step and for other readers, up to a number of bytes.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from tape.archive.files import File, Group, intersecting, read_footer, read_group, within
from tape.archive.location import resolved
from tape.archive.table import Lake
from tape.errors import ArchiveDamaged, ArchiveUnreachable, PipelineInput
from tape.journal.history import Wanted
from tape.model.entry import Entry
from tape.model.pattern import Pattern

log = logging.getLogger(__name__)

T = TypeVar("T")

CACHE_BYTES = 128 << 20
CACHED_FOOTERS = 2_048
_ENTRY = Entry.__struct_fields__


class ArchivedPast:
    """The archive at a URL, which may come into being later. May be used by several threads."""

    def __init__(self, url: str, options: Mapping[str, str] | None = None) -> None:
        self.url = resolved(url)
        self._options = options
        self._lake: Lake | None = None
        self._files: list[File] = []
        self._extent = range(0)
        self._lock = threading.Lock()
        self._tables: OrderedDict[tuple[Any, ...], pa.Table] = OrderedDict()
        self._table_bytes = 0
        self._footers: OrderedDict[str, tuple[pq.FileMetaData, list[Group]]] = OrderedDict()

    def extent(self, at_least: int = 0) -> range:
        """The entries that are archived; if they seem to end before `at_least`, it looks for newer ones."""
        if self._lake is None or self._extent.stop <= at_least:
            self._look()
        return self._extent

    def read(self, wanted: Wanted, after: int, until: int, limit: int, *, newest: bool = False) -> list[Entry]:
        """The first wanted entries after one global_seq up to another, or the newest ones, in order.

        Raises ArchiveDamaged if a file cannot be read, or entries that must be there are not.
        """
        return self._trying(lambda: self._read(wanted, after, until, limit, newest))

    def position_before(self, ts_ms: int) -> int:
        """The global_seq just before the first archived entry at or after a time."""
        return self._trying(lambda: self._position_before(ts_ms))

    # ── the table ────────────────────────────────────────────────────────────────────────────────

    def _look(self) -> None:
        with self._lock:
            try:
                if self._lake is None:
                    self._lake = Lake.open(self.url, self._options)
                else:
                    self._lake.refresh()
            except PipelineInput as error:
                log.warning("%s", error)
                return
            except (DeltaError, OSError) as error:
                raise ArchiveUnreachable(f"The archive at {self.url} cannot be reached: {error}") from error
            self._files = self._lake.files()
            self._extent = range(self._lake.begin, self._lake.until + 1)

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

    def _read(self, wanted: Wanted, after: int, until: int, limit: int, newest: bool) -> list[Entry]:
        if wanted.is_everything:  # numbers have no gaps, so the place of the last one is known
            after, until = (max(after, until - limit), until) if newest else (after, min(until, after + limit))
        rows = [(group, self._rows(group, wanted, after, until)) for group in self._groups(wanted, after, until)]
        numbers = sorted(number for _, found in rows for number in found)
        if wanted.is_everything and len(numbers) != until - after:
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

    def _groups(self, wanted: Wanted, after: int, until: int) -> list[Group]:
        kinds = kinds_of(wanted)
        found = []
        for file in intersecting(self._files, after, until):
            if kinds is None or file.kind in kinds:
                _, groups = self._footer(file)
                found += [group for group in groups if group.last > after and group.first <= until]
        return found

    def _rows(self, group: Group, wanted: Wanted, after: int, until: int) -> dict[int, int]:
        """The wanted entries of a group, and the rows that they are in."""
        tested = {name: values for name, values in wanted.values.items() if name != "kind"}
        has_pattern = not wanted.pattern.matches_everything
        names = ("global_seq", *tested, *(("subject",) if has_pattern else ()))
        table = self._columns(group, names)
        mask = within(table, after, until)
        for name, values in tested.items():
            mask = pc.and_(mask, pc.is_in(table.column(name), pa.array(values, pa.string())))
        if has_pattern:
            mask = pc.and_(mask, _fitting(table.column("subject"), wanted.pattern))
        rows = pc.indices_nonzero(mask)
        return dict(zip(table.column("global_seq").take(rows).to_pylist(), rows.to_pylist(), strict=True))

    def _position_before(self, ts_ms: int) -> int:
        self.extent()
        found = self._extent.start - 1
        for file in self._files:
            if file.last_ms < ts_ms:
                found = max(found, file.last)
            elif file.first_ms < ts_ms and file.last > found:
                for group in self._footer(file)[1]:
                    if group.last > found:
                        table = self._columns(group, ("global_seq", "ts_ms"))
                        older = table.column("global_seq").filter(pc.less(table.column("ts_ms"), ts_ms))
                        found = max(found, pc.max(older).as_py() or 0)
        return found

    # ── what is kept ─────────────────────────────────────────────────────────────────────────────

    def _footer(self, file: File) -> tuple[pq.FileMetaData, list[Group]]:
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

    def _columns(self, group: Group, names: Sequence[str]) -> pa.Table:
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
        assert self._lake is not None, "there are files, so there is a table"
        return self._lake.filesystem


def kinds_of(wanted: Wanted) -> set[str] | None:
    """The kinds that wanted entries can have; None is any."""
    kinds = set(wanted.values["kind"]) if "kind" in wanted.values else None
    segments = wanted.pattern.segments
    if len(segments) > 1 and isinstance(kind := segments[1], str):
        return {kind} if kinds is None else kinds & {kind}
    return kinds


def _fitting(subjects: pa.ChunkedArray, pattern: Pattern) -> pa.ChunkedArray:
    """Which subjects match; a pattern looks at each distinct one once."""
    coded = subjects.combine_chunks().dictionary_encode()
    fits = pa.array([pattern.matches(subject) for subject in coded.dictionary.to_pylist()], pa.bool_())
    return fits.take(coded.indices)
