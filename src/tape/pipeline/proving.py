"""Proving the archive: every entry against the hash chain, and its end against the journal."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pyarrow as pa

from tape.archive.lake import Lake
from tape.errors import ArchiveDamaged
from tape.journal.chain import TEXTS
from tape.journal.verify import Finding, Report, Walk
from tape.pipeline.hot import ask_patiently
from tape.store import Reader

WINDOW = 200_000
_ORDER = ("global_seq", "seq", "ts_ms", "schema_version", *TEXTS, "chain")


class LakeReport(msgspec.Struct):
    """The outcome of a walk over an archive; `damaged` are the files that cannot be used."""

    oldest: int
    until: int
    entries: int
    files: int
    findings: list[Finding]
    damaged: list[str]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings and not self.damaged


def verify_lake(
    lake: Lake, store: str = "", progress: Callable[[int, int], None] = lambda done, total: None
) -> LakeReport:
    """Follow the chain through the archive; with a store, also compare its end with the journal's."""
    report = Report(lake.begin, lake.until)
    walk = Walk(report, lake.anchor)
    files, damaged = lake.files(), {}
    for after in range(lake.begin - 1, lake.until, WINDOW):
        until = min(after + WINDOW, lake.until)
        tables = []
        for file in files:
            if file.last > after and file.first <= until and file.path not in damaged:
                try:
                    tables.append(lake.read_file(file, after, until))
                except ArchiveDamaged as error:
                    damaged[file.path] = str(error)
        if tables:
            entries = pa.concat_tables(tables).sort_by("global_seq").select(_ORDER)
            for row in zip(*(column.to_pylist() for column in entries.columns), strict=True):
                walk.check(row)
        walk.skip_to(until + 1)
        progress(until - lake.begin + 1, lake.until - lake.begin + 1)
    if store and not damaged and report.ok and lake.until >= lake.begin:
        problem = disagreement(lake, store, walk.chain)
        if problem:
            report.findings.append(Finding(lake.until, "head", problem))
    return LakeReport(lake.begin, lake.until, report.entries, len(files), report.findings, sorted(damaged.values()))


def disagreement(lake: Lake, store: str, chain: bytes) -> str:
    """Where the last archived entry and the journal differ; empty if they don't, or can't be compared."""
    until = lake.until

    def chain_of(reader: Reader) -> bytes | None:
        row = reader.one("SELECT chain FROM tape_journal WHERE global_seq = ?", until)
        if row is None:
            row = reader.one("SELECT anchor FROM tape_head WHERE oldest = ?", until + 1)
        return None if row is None else bytes(row[0])

    there = ask_patiently(store, chain_of)
    if there is not None and there != chain:
        return f"the archive's chain ends in {chain.hex()}, the journal has {there.hex()}: another journal's archive"
    return ""


def last_chain(lake: Lake) -> bytes:
    """The chain value of the last archived entry."""
    for file in lake.files():
        if file.first <= lake.until <= file.last:
            table = lake.read_file(file, lake.until - 1, lake.until)
            if table.num_rows:
                return bytes(table.column("chain")[0].as_py())
    return lake.anchor
