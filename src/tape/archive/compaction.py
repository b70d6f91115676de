"""Compaction of the archive: small files of a day and kind are rewritten as larger ones."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby

import pyarrow as pa

from tape.archive.files import FILE_COLUMNS, ArchiveFile, read_footer, read_group, write_file
from tape.archive.table import ArchiveTable
from tape.errors import ArchiveBusy

log = logging.getLogger(__name__)

SMALL_BYTES = 32 << 20
LARGE_BYTES = 128 << 20


def compact(archive: ArchiveTable, at_least: int = 2) -> int:
    """Rewrite runs of at least `at_least` neighbouring small files as one file; the number of files replaced.

    The entries and their order stay. Readers see the old files or the new one; the old ones stay where they are
    until `ArchiveTable.vacuum`.
    """
    files = sorted(archive.files(), key=lambda file: (file.day, file.kind, file.first))
    small = [
        neighbours
        for _, same in groupby(files, key=lambda file: (file.day, file.kind))
        for neighbours in _find_neighbours(list(same))
        if len(neighbours) >= at_least
    ]
    if not small:
        return 0
    large = [_join_files(archive, neighbours) for neighbours in small]
    old = [file for neighbours in small for file in neighbours]
    try:
        archive.replace(old, large, "compaction")
    except ArchiveBusy as error:
        log.warning("archive compaction skipped, the archive was changed by another process: %s", error)
        for file in large:
            archive.filesystem.delete_file(file.path)
        archive.refresh()
        return 0
    return len(old)


def _find_neighbours(files: Sequence[ArchiveFile]) -> Iterator[list[ArchiveFile]]:
    """Consecutive small files whose sum is at most 128 MiB."""
    found: list[ArchiveFile] = []
    size = 0
    for file in files:
        is_small = file.size < SMALL_BYTES and (not found or found[-1].last < file.first)
        if found and (not is_small or size + file.size > LARGE_BYTES):
            yield found
            found, size = [], 0
        if file.size < SMALL_BYTES:
            found.append(file)
            size += file.size
    if found:
        yield found


def _join_files(archive: ArchiveTable, files: Sequence[ArchiveFile]) -> ArchiveFile:
    first = next(_read_parts(archive, files[:1]))
    last = deque(_read_parts(archive, files[-1:]), maxlen=1).pop()
    return write_file(archive.filesystem, _read_parts(archive, files), first, last, files[0].day, files[0].kind)


def _read_parts(archive: ArchiveTable, files: Sequence[ArchiveFile]) -> Iterator[pa.Table]:
    for file in files:
        facts, groups = read_footer(archive.filesystem, file)
        for group in sorted(groups, key=lambda group: group.first):
            yield read_group(archive.filesystem, facts, group, FILE_COLUMNS).sort_by("global_seq")
