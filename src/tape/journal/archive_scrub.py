"""Scrubbing of one window of the archive: its chain is contiguous, and its end is where the journal has it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tape.errors import ArchiveDamaged
from tape.journal.chain_walk import ChainWalk
from tape.journal.epochs import Epoch
from tape.journal.findings import Finding, VerifyReport
from tape.journal.history import Archive, EntryFilter
from tape.journal.scrub import ScrubPosition
from tape.model.chain import GENESIS, TEXTS
from tape.store import Reader

_EVERYTHING = EntryFilter()


class ScrubbedArchive(msgspec.Struct, frozen=True):
    """What a window of the archive has: its end, and what is wrong."""

    end: ScrubPosition
    entries: int
    bytes: int
    findings: Sequence[Finding]
    is_last: bool


def scrub_archive(
    archive: Archive, after: ScrubPosition, epochs: Sequence[Epoch], max_entries: int
) -> ScrubbedArchive | None:
    """Verify the next archived entries after a position; None at the end of the archive."""
    extent = archive.extent(after.global_seq + 2)
    if after.global_seq + 1 < extent.start:
        after = ScrubPosition(extent.start - 1, GENESIS if extent.start == 1 else b"")
    if after.global_seq + 1 >= extent.stop:
        return None
    first = after.global_seq + 1
    last = min(after.global_seq + max_entries, extent.stop - 1)
    # No entry has a number of a lost range, so a window neither ends nor begins inside of one.
    for epoch in epochs:
        if epoch.cut_after < first < epoch.resumes_at:
            last = min(epoch.resumes_at, extent.stop - 1)
        elif first <= epoch.cut_after < last:
            last = epoch.cut_after
    report = VerifyReport(first, last)
    walk = ChainWalk(report, after.chain, epochs)
    size = 0
    hole = next((epoch for epoch in epochs if epoch.cut_after < first < epoch.resumes_at), None)
    try:
        begin = hole.resumes_at - 1 if hole else after.global_seq
        entries = archive.read(_EVERYTHING, begin, last, max_entries) if begin < last else []
        for entry in entries:
            texts = [getattr(entry, name) for name in TEXTS]
            size += sum(map(len, texts))
            walk.check((entry.global_seq, entry.seq, entry.ts_ms, entry.schema_version, *texts, bytes(entry.chain)))
        if hole is None or begin < last:
            walk.skip_to(last + 1)
    except ArchiveDamaged as error:
        report = VerifyReport(first, last)
        walk = ChainWalk(report, b"")
        report.add(Finding(first, "unreadable", str(error), last))
    found = [finding for finding in report.findings if finding.problem != "unproven"]
    return ScrubbedArchive(
        ScrubPosition(last, walk.chain), report.entries, size, found, last + 1 >= archive.extent().stop
    )


def check_seam(reader: Reader, end: ScrubPosition) -> Finding | None:
    """A finding if the journal has another chain value for the last archived entry."""
    row = reader.one("SELECT chain FROM tape_journal WHERE global_seq = ?", end.global_seq)
    if row is None:
        row = reader.one("SELECT anchor FROM tape_head WHERE oldest = ?", end.global_seq + 1)
    if row is None or not end.chain or bytes(row[0]) == end.chain:
        return None
    return Finding(end.global_seq, "altered", "the archive and the journal have different chain values for it")
