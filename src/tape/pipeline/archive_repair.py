"""Repairs the archive: rebuilds entries of damaged files from the journal and moves these files to quarantine.

All or nothing: unless every entry can be rebuilt and verified, the archive stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tape.archive.files import ArchiveFile, files_in_range, write_files
from tape.archive.rows import read_rows
from tape.archive.table import ArchiveTable
from tape.errors import ArchiveBeyondRepair, ArchiveBusy, EntryDamaged
from tape.journal.appender import read_head
from tape.journal.epochs import Holes
from tape.journal.findings import Finding
from tape.pipeline.archive_verifier import WINDOW, ArchiveReport, verify_archive
from tape.pipeline.journal_reader import query_store, read_head_and_holes

QUARANTINE = "_quarantine"
NUMBER = ("global_seq",)


class ArchiveRepair(msgspec.Struct):
    """The result of a repair: the number of rebuilt entries, and the files that were replaced."""

    entries: int
    replaced: list[str]


def repair_archive(
    lake: ArchiveTable,
    store: str,
    report: ArchiveReport,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ArchiveRepair:
    """Rebuild damaged and missing entries from the journal. Raises ArchiveBeyondRepair and changes nothing then."""
    files = lake.files()
    altered = [finding for finding in report.findings if finding.problem == "altered"]
    wrong = [number for finding in altered for number in range(finding.global_seq, finding.last + 1)]
    bad = [file for file in files if file.path in report.damaged or _has_any(lake, file, wrong)]
    good = [file for file in files if file not in bad]
    missing = _missing(lake, good, query_store(store, read_head_and_holes)[1])
    if not bad and not missing:
        raise ArchiveBeyondRepair(f"The archive at {lake.url} cannot be repaired: {_described(report.findings)}.")
    oldest = query_store(store, read_head).oldest
    if missing and missing[0] < oldest:
        pruned = sum(number < oldest for number in missing)
        raise ArchiveBeyondRepair(
            f"{pruned:,} of {len(missing):,} damaged entries, from {missing[0]} on, are no longer in the journal, which"
            f" begins with {oldest}. Nothing was changed. Restore from a backup: {', '.join(_names(bad))}"
        )
    new: list[ArchiveFile] = []
    try:
        for start in range(0, len(missing), WINDOW):
            new += _rebuild(lake, store, missing[start : start + WINDOW])
        proof = verify_archive(lake, store, progress, [*good, *new])
        if not proof.ok:
            raise ArchiveBeyondRepair(
                f"The journal's entries do not fit into the archive's chain: {_described(proof.findings)}. Nothing was"
                " changed. See: tape verify"
            )
    except BaseException:
        _delete(lake, new)
        raise
    try:
        lake.replace(bad, new, "repair")
    except ArchiveBusy:  # after any other failure the commit may have happened, and the files may be in use
        _delete(lake, new)
        raise
    for file in bad:
        if lake.filesystem.get_file_info(file.path).is_file:
            lake.filesystem.create_dir(QUARANTINE, recursive=True)
            lake.filesystem.move(file.path, f"{QUARANTINE}/{file.path.replace('/', ',')}")
    return ArchiveRepair(len(missing), _names(bad))


def _rebuild(lake: ArchiveTable, store: str, numbers: Sequence[int]) -> list[ArchiveFile]:
    """Write these entries of the journal to new files."""
    tables = []
    lacking, wanted = set(numbers), pa.array(numbers, pa.int64())
    for start in range(numbers[0] - 1, numbers[-1], WINDOW):
        until = min(start + WINDOW, numbers[-1])
        try:
            rows = query_store(store, lambda reader: read_rows(reader, start, until, lacking))  # noqa: B023
        except EntryDamaged as error:
            raise ArchiveBeyondRepair(
                f"The journal's entries do not fit into the archive's chain: entry {error.first} is damaged in the"
                " journal too. Nothing was changed. See: tape verify"
            ) from error
        tables.append(rows.filter(pc.is_in(rows.column("global_seq"), wanted)))
    found = pa.concat_tables(tables)
    if found.num_rows != len(numbers):
        raise ArchiveBeyondRepair(
            f"{len(numbers) - found.num_rows:,} damaged entries were pruned from the journal meanwhile, or are"
            " missing there. Nothing was changed. See: tape verify"
        )
    return write_files(lake.filesystem, found)


def _missing(lake: ArchiveTable, files: Sequence[ArchiveFile], holes: Holes) -> list[int]:
    """Return the global_seqs of the archive's range that are in none of these files and in no hole, in order."""
    found: list[int] = []
    for after in range(lake.begin - 1, lake.until, WINDOW):
        until = min(after + WINDOW, lake.until)
        there: set[int] = set()
        for file in files_in_range(files, after, until):
            there.update(lake.read_file(file, after, until, NUMBER).column("global_seq").to_pylist())
        found += [n for n in range(after + 1, until + 1) if n not in there and holes.next_number(n) == n]
    return found


def _has_any(lake: ArchiveTable, file: ArchiveFile, numbers: Sequence[int]) -> bool:
    near = [number for number in numbers if file.first <= number <= file.last]
    if not near:
        return False
    there = lake.read_file(file, near[0] - 1, near[-1], NUMBER).column("global_seq")
    return bool(pc.any(pc.is_in(there, pa.array(near, pa.int64()))).as_py())


def _delete(lake: ArchiveTable, files: Sequence[ArchiveFile]) -> None:
    for file in files:
        lake.filesystem.delete_file(file.path)


def _names(files: Sequence[ArchiveFile]) -> list[str]:
    return [file.path for file in files]


def _described(findings: Sequence[Finding]) -> str:
    first = findings[0] if findings else None
    return f"entry {first.global_seq} is {first.problem}, {first.detail}" if first else "a file cannot be read"
