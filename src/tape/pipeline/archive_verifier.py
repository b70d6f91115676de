"""Verifies the archive: every entry against the hash chain, and the last entry against the journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pyarrow as pa

from tape.archive.files import ArchiveFile, check_file, files_in_range
from tape.archive.table import ArchiveTable
from tape.errors import ArchiveDamaged
from tape.journal.verifier import ChainWalk, Finding, VerifyReport
from tape.model.chain import TEXTS
from tape.pipeline.journal_reader import query_store
from tape.store import Reader

WINDOW = 200_000
_ORDER = ("global_seq", "seq", "ts_ms", "schema_version", *TEXTS, "chain")


class ArchiveReport(msgspec.Struct):
    """The result of a verification; `damaged` maps the path of each unusable file to the reason."""

    oldest: int
    until: int
    entries: int
    files: int
    findings: list[Finding]
    damaged: dict[str, str]

    @property
    def ok(self) -> bool:
        """Whether the archive has no findings and no damaged files."""
        return not self.findings and not self.damaged


def verify_archive(
    lake: ArchiveTable,
    store: str = "",
    progress: Callable[[int, int], None] = lambda done, total: None,
    files: Sequence[ArchiveFile] | None = None,
) -> ArchiveReport:
    """Follow the hash chain through the archive; with a store, also compare its end with the journal's.

    `files` replaces the list of files, to verify a repair before it is committed.
    """
    files = lake.files() if files is None else files
    report = VerifyReport(lake.begin, lake.until)
    walk = ChainWalk(report, lake.anchor)
    damaged: dict[str, str] = {}
    for after in range(lake.begin - 1, lake.until, WINDOW):
        until = min(after + WINDOW, lake.until)
        tables = []
        for file in files_in_range(files, after, until):
            if file.path not in damaged:
                try:
                    table = lake.read_file(file, after, until)
                    check_file(file, table)
                    tables.append(table)
                except ArchiveDamaged as error:
                    damaged[file.path] = str(error)
        if tables:
            entries = pa.concat_tables(tables).sort_by("global_seq").select(_ORDER)
            for row in zip(*(column.to_pylist() for column in entries.columns), strict=True):
                walk.check(row)
        walk.skip_to(until + 1)
        progress(until - lake.begin + 1, lake.until - lake.begin + 1)
    findings = [one for one in report.findings if not _is_explained(one, files, damaged)]
    if store and not damaged and not findings and lake.until >= lake.begin:
        problem = disagreement(lake, store, walk.chain)
        if problem:
            findings.append(Finding(lake.until, "head", problem))
    return ArchiveReport(lake.begin, lake.until, report.entries, len(files), findings, damaged)


def _is_explained(finding: Finding, files: Sequence[ArchiveFile], damaged: dict[str, str]) -> bool:
    """Whether a damaged file explains why an entry is missing or cannot be verified."""
    if finding.problem not in ("missing", "unproven"):
        return False
    # The entry right after a damaged file cannot be verified either.
    return any(file.path in damaged and file.first <= finding.global_seq <= file.last + 1 for file in files)


def disagreement(lake: ArchiveTable, store: str, chain: bytes) -> str:
    """Describe how the last archived entry and the journal differ; empty if they agree or cannot be compared."""
    until = lake.until

    def chain_of(reader: Reader) -> bytes | None:
        row = reader.one("SELECT chain FROM tape_journal WHERE global_seq = ?", until)
        if row is None:
            row = reader.one("SELECT anchor FROM tape_head WHERE oldest = ?", until + 1)
        return None if row is None else bytes(row[0])

    there = query_store(store, chain_of)
    if there is not None and there != chain:
        return f"the archive's chain ends in {chain.hex()}, the journal has {there.hex()}: another journal's archive"
    return ""


def last_chain(lake: ArchiveTable) -> bytes:
    """Return the chain value of the last archived entry."""
    for file in lake.files():
        if file.first <= lake.until <= file.last:
            table = lake.read_file(file, lake.until - 1, lake.until)
            if table.num_rows:
                return bytes(table.column("chain")[0].as_py())
    return lake.anchor
