"""Verifies the archive: every entry against the hash chain, and the last entry against the journal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tape.archive.files import ArchiveFile, check_file, files_in_range
from tape.archive.table import ArchiveTable
from tape.base import structs
from tape.errors import ArchiveDamaged
from tape.journal.appender import Head, read_head
from tape.journal.chain_walk import ChainWalk
from tape.journal.epochs import Epoch, Holes, read_epochs
from tape.journal.findings import Finding, VerifyReport
from tape.journal.proofs import chain_at
from tape.model.chain import TEXTS
from tape.model.subject import journal_diverged
from tape.pipeline.journal_reader import query_store
from tape.store import Reader

WINDOW = 200_000
JOURNAL_KIND = journal_diverged().split("/")[2]
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
    epochs = query_store(store, read_epochs) if store else read_archived_epochs(lake, files)
    walk, holes = ChainWalk(report, lake.anchor, epochs), Holes(epochs)
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
        if holes.next_number(until + 1) == until + 1:  # else the entry after the hole proves it
            walk.skip_to(until + 1)
        progress(until - lake.begin + 1, lake.until - lake.begin + 1)
    findings = [rest for one in report.findings for rest in _subtract_damaged(one, files, damaged)]
    if store and not damaged and not findings and lake.until >= lake.begin:
        problem = disagreement(lake, store, walk.chain)
        if problem:
            findings.append(Finding(lake.until, "head", problem))
    return ArchiveReport(lake.begin, lake.until, report.entries, len(files), findings, damaged)


def read_archived_epochs(lake: ArchiveTable, files: Sequence[ArchiveFile]) -> list[Epoch]:
    """The epochs that archived entries `journal.diverged` begin; the chain proves those entries."""
    epochs = []
    for file in files:
        if file.kind != JOURNAL_KIND:
            continue
        try:
            table = lake.read_file(file, file.first - 1, file.last, ("global_seq", "ts_ms", "subject", "payload_json"))
        except ArchiveDamaged:
            continue  # named by the walk
        for row in table.filter(pc.equal(table.column("subject"), journal_diverged())).to_pylist():
            with contextlib.suppress(msgspec.MsgspecError):
                facts = msgspec.json.decode(row["payload_json"], type=dict[str, object])
                epoch = structs.convert({**facts, "ts_ms": row["ts_ms"]}, Epoch)
                if epoch.resumes_at == row["global_seq"]:
                    epochs.append(epoch)
    return sorted(epochs, key=lambda epoch: epoch.resumes_at)


def _subtract_damaged(finding: Finding, files: Sequence[ArchiveFile], damaged: dict[str, str]) -> list[Finding]:
    """What is left of a finding without the entries that damaged files explain."""
    if finding.problem not in ("missing", "unproven"):
        return [finding]
    left = [finding]
    for file in files:
        if file.path in damaged:
            # The entry right after a damaged file cannot be verified either.
            left = [part for one in left for part in _subtract(one, file.first, file.last + 1)]
    return left


def _subtract(finding: Finding, first: int, last: int) -> list[Finding]:
    """The parts of a finding before and after a range."""
    if last < finding.global_seq or finding.last < first:
        return [finding]
    parts = []
    if finding.global_seq < first:
        parts.append(msgspec.structs.replace(finding, last=first - 1))
    if last < finding.last:
        parts.append(msgspec.structs.replace(finding, global_seq=last + 1))
    return parts


def disagreement(lake: ArchiveTable, store: str, chain: bytes) -> str:
    """Describe how the last archived entry and the journal differ; empty if they agree or cannot be compared."""
    until = lake.until

    def ends_of(reader: Reader) -> tuple[Head, bytes | None]:
        return read_head(reader), chain_at(reader, until)

    head, there = query_store(store, ends_of)
    if head.global_seq < until:
        return (
            f"the archive has entries up to {until}, the journal ends at {head.global_seq}:"
            " entries of its tail are gone"
        )
    if head.oldest > until + 1:
        return f"entries {until + 1} to {head.oldest - 1} were pruned from the journal and are not in the archive"
    if there is not None and there != chain:
        return f"the archive's chain ends in {chain.hex()}, the journal has {there.hex()}: another journal's archive"
    return ""


def last_chain(lake: ArchiveTable) -> bytes:
    """Return the chain value of the last archived entry."""
    return lake.chain_at(lake.until) or lake.anchor
