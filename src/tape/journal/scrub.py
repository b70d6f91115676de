"""Scrubbing of one window of the journal: what is proven, what is damaged, and which checksums are to be written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from tape.journal.appender import read_head
from tape.journal.chain_walk import ChainWalk
from tape.journal.checksum_check import checksum_of, compare_checksums
from tape.journal.damage import DamagedRange, read_damage_between
from tape.journal.epochs import read_epochs
from tape.journal.findings import Finding, VerifyReport
from tape.journal.index_check import find_unindexed
from tape.journal.salvage import DamagedRow, fit_window, read_entries, read_windows
from tape.model.chain import GENESIS
from tape.model.gap import GapReason, JournalGap
from tape.store import Reader

MAX_BYTES = 4 << 20


class ScrubPosition(msgspec.Struct, frozen=True):
    """The last number that was scrubbed, and its chain value; empty if that is not known."""

    global_seq: int
    chain: bytes


class ScrubbedWindow(msgspec.Struct, frozen=True):
    """What a window has: its end, damage, and the entries whose checksum is missing or wrong while they are proven."""

    end: ScrubPosition
    entries: int
    bytes: int
    gaps: Sequence[JournalGap]
    # Entries that an index lacks: readers by run, subject or session miss them.
    unindexed: Sequence[JournalGap]
    # global_seq and checksum.
    missing_checksums: Sequence[tuple[int, int]]
    wrong_checksums: Sequence[tuple[int, int]]
    # What is recorded as damaged and is whole.
    healed: Sequence[tuple[int, int]]
    is_last: bool


def scrub_window(reader: Reader, after: ScrubPosition, max_entries: int) -> ScrubbedWindow | None:
    """Verify the next entries after a position; None at the head of the journal."""
    head = read_head(reader)
    if after.global_seq < head.oldest - 1:
        after = ScrubPosition(head.oldest - 1, head.anchor)
    if after.global_seq >= head.global_seq:
        return None
    first = after.global_seq + 1
    window = next(read_windows(reader, first, head.global_seq, max_entries), None)
    last = fit_window(reader, first, window[1], MAX_BYTES) if window else head.global_seq
    report = VerifyReport(first, last)
    walk = ChainWalk(report, after.chain or (GENESIS if first == 1 else b""), read_epochs(reader))
    proven: list[tuple[int, int]] = []
    size = 0
    for row in read_entries(reader, first, last):
        if isinstance(row, DamagedRow):
            walk.pass_over(row)
        elif not isinstance(row, int):
            size += sum(len(text) for text in row[4:-1] if isinstance(text, str))
            if walk.check(row):
                proven.append((row[0], checksum_of(row)))
    walk.skip_to(last + 1)
    gaps = [_gap(finding) for finding in report.findings if finding.problem != "unproven"]
    unindexed = _merged(_gap(finding) for finding in find_unindexed(reader, first, last))
    oldest = read_head(reader).oldest
    if oldest > first:  # retention removed entries meanwhile, which are not damaged
        gaps, unindexed = ([gap for gap in found if gap.first >= oldest] for found in (gaps, unindexed))
    missing, wrong = compare_checksums(reader, proven, first, last)
    known = read_damage_between(reader, first, last)
    return ScrubbedWindow(
        ScrubPosition(last, walk.chain),
        report.entries,
        size,
        gaps,
        unindexed,
        missing,
        wrong,
        list(_subtract(known, [*gaps, *unindexed], first, last)),
        last >= head.global_seq,
    )


def _gap(finding: Finding) -> JournalGap:
    reason: GapReason = "missing" if finding.problem == "missing" else "damaged"
    return JournalGap(finding.global_seq, finding.last, reason, f"{finding.problem}: {finding.detail}")


def _merged(gaps: Iterable[JournalGap]) -> list[JournalGap]:
    """The gaps in order, without those that an earlier one has."""
    merged: list[JournalGap] = []
    for gap in sorted(gaps, key=lambda each: (each.first, each.last)):
        if merged and gap.first <= merged[-1].last + 1 and gap.detail == merged[-1].detail:
            merged[-1] = msgspec.structs.replace(merged[-1], last=max(merged[-1].last, gap.last))
        elif not merged or gap.last > merged[-1].last:
            merged.append(msgspec.structs.replace(gap, first=max(gap.first, merged[-1].last + 1)) if merged else gap)
    return merged


def _subtract(
    known: Sequence[DamagedRange], gaps: Sequence[JournalGap], first: int, last: int
) -> Iterator[tuple[int, int]]:
    """The parts of recorded damage, from one number to another, that no gap has."""
    for damage in known:
        position, end = max(damage.first, first), min(damage.last, last)
        for gap in sorted(gaps, key=lambda each: each.first):
            if position < gap.first <= end:
                yield position, gap.first - 1
            if gap.first <= end and gap.last >= position:
                position = max(position, gap.last + 1)
        if position <= end:
            yield position, end
