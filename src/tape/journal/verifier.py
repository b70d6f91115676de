"""Verification of the journal: every entry against its chain value, from the anchor to the head, and its indexes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from tape.journal.appender import Head
from tape.journal.chain_walk import ChainWalk
from tape.journal.checksum_check import checksum_of, compare_checksums
from tape.journal.epochs import Epoch, read_epochs
from tape.journal.findings import Finding, Problem, VerifyReport
from tape.journal.index_check import REMEDY, check_indexes
from tape.journal.run_head_check import find_high_run_heads, find_low_run_heads
from tape.journal.salvage import UNAVAILABLE, DamagedRow, describe, read_entries
from tape.model.chain import CHAIN_BYTES, GENESIS
from tape.model.entry import MAX_SEQ
from tape.store import Reader

__all__ = ["ChainWalk", "Check", "Finding", "Problem", "VerifyContext", "VerifyReport", "verify"]

PAGE = 10_000


class VerifyContext(msgspec.Struct, frozen=True):
    """What the walk over the chain has found out, for the checks after it.

    `chain` is the chain value of the entry at `head`; empty if it could not be followed up to there.
    """

    oldest: int
    head: int
    chain: bytes
    epochs: Sequence[Epoch]
    # What was found before this check.
    findings: Sequence[Finding] = ()

    @property
    def is_complete(self) -> bool:
        """Whether there is an entry for each number, as far as is known."""
        return not any(finding.problem in ("missing", "unreadable") for finding in self.findings)

    def is_damaged(self, global_seq: int) -> bool:
        """Whether the content of an entry is named already."""
        return any(
            finding.global_seq <= global_seq <= finding.last and finding.problem in ("altered", "unreadable")
            for finding in self.findings
        )


# Runs after the walk. A check that fails is a finding itself, unless the store is unavailable.
Check = Callable[[Reader, VerifyContext], Iterable[Finding]]


def verify(
    reader: Reader,
    progress: Callable[[int, int], None] = lambda done, total: None,
    checks: Sequence[Check] = (),
) -> VerifyReport:
    """Walk the journal and name every entry that is not what was written; damage does not stop the walk.

    The journal may be written to, and pruned, meanwhile: the walk ends at the head it began with. Raises only if the
    store is unavailable. `checks` run after those of this module.
    """
    head, problems = _read_head(reader)
    report = VerifyReport(head.oldest, head.global_seq)
    epochs = _read_epochs(reader, problems)
    for problem in problems:
        report.add(problem)
    walk = ChainWalk(report, head.anchor, epochs)
    total = head.global_seq - head.oldest + 1
    proven: list[tuple[int, int]] = []
    for row in read_entries(reader, head.oldest, head.global_seq):
        if isinstance(row, int):
            if proven:
                for number, _ in compare_checksums(reader, proven, proven[0][0], proven[-1][0])[1]:
                    report.add(Finding(number, "altered", "its checksum is damaged; the entry is whole"))
                proven.clear()
            progress(row - head.oldest + 1, total)
        elif isinstance(row, DamagedRow):
            walk.pass_over(row)
        elif walk.check(row):
            proven.append((row[0], checksum_of(row)))
    walk.finish(head.global_seq, head.chain)
    for check in (*CHECKS, *checks):
        context = VerifyContext(head.oldest, head.global_seq, walk.chain, epochs, tuple(report.findings))
        for finding in _run(check, reader, context):
            report.add(finding)
    now = _read_head(reader)[0]
    if now.oldest > report.oldest:
        report.drop_below(now.oldest)
    report.findings.sort(key=lambda finding: finding.global_seq)
    return report


def find_outside(reader: Reader, context: VerifyContext) -> Iterator[Finding]:
    """Entries before the oldest or beyond the head: rows were added, or the head row was changed."""
    # The head is read in the same statement: entries are appended and removed meanwhile.
    beyond = f"global_seq > coalesce((SELECT max(global_seq) FROM tape_head), {context.head})"
    before = f"global_seq < coalesce((SELECT min(oldest) FROM tape_head), {context.oldest})"
    yield from _find_added(reader, beyond, "lies beyond the head: it was added, or the head row was changed")
    yield from _find_added(
        reader, before, "lies before the oldest retained entry: it was added, or the head row was changed"
    )


def find_damaged_pages(reader: Reader, context: VerifyContext) -> Iterator[Finding]:
    """Pages of the file of SQLite that are not a tree any more, of any table."""
    if reader.dialect == "sqlite":
        for (line,) in reader.query("PRAGMA quick_check(100)"):
            if "in index tape_journal" in line:
                if context.is_complete:  # else the table is what lacks entries
                    yield Finding(0, "index", f"{line}; {REMEDY}")
            elif line != "ok":
                yield Finding(0, "unreadable", f"the file is damaged: {line}")


def find_unindexed_entries(reader: Reader, context: VerifyContext) -> Iterator[Finding]:
    """Entries that readers of a run, a subject or a session do not find."""
    for finding in check_indexes(reader, context.oldest, context.head, is_complete=context.is_complete):
        if finding.global_seq != finding.last or not context.is_damaged(finding.global_seq):
            yield finding


def find_wrong_run_heads(reader: Reader, context: VerifyContext) -> Iterator[Finding]:
    """Runs whose next seq would be wrong."""
    for finding in find_low_run_heads(reader, context.oldest, context.head):
        if not context.is_damaged(finding.global_seq):
            yield finding
    if context.oldest == 1 and not context.findings:  # else the entry that had the seq may be gone
        yield from find_high_run_heads(reader)


CHECKS: tuple[Check, ...] = (find_outside, find_damaged_pages, find_unindexed_entries, find_wrong_run_heads)


def _find_added(reader: Reader, condition: str, detail: str) -> Iterator[Finding]:
    after = -MAX_SEQ - 1
    sql = f"SELECT global_seq FROM tape_journal WHERE {condition} AND global_seq > ? ORDER BY global_seq LIMIT {PAGE}"
    while rows := reader.query(sql, after):
        first = last = rows[0][0]
        for (number,) in rows[1:]:
            if number != last + 1:
                yield Finding(first, "altered", detail, last)
                first = number
            last = number
        yield Finding(first, "altered", detail, last)
        if last <= after:
            return
        after = last


def _run(check: Check, reader: Reader, context: VerifyContext) -> Iterator[Finding]:
    try:
        yield from check(reader, context)
    except UNAVAILABLE:
        raise
    except Exception as error:
        name = getattr(check, "__name__", "check")
        yield Finding(0, "unreadable", f"{name} cannot be completed: {describe(error)}")


def _read_epochs(reader: Reader, problems: list[Finding]) -> Sequence[Epoch]:
    try:
        return read_epochs(reader)
    except UNAVAILABLE:
        raise
    except Exception as error:
        problems.append(Finding(0, "schema", f"tape_epochs cannot be read: {describe(error)}"))
        return []


def _read_head(reader: Reader) -> tuple[Head, list[Finding]]:
    """The head row; where it is damaged, both ends as the entries have them, and what is wrong."""
    problems: list[Finding] = []
    rows: list[Any] = []
    try:
        rows = reader.query(
            "SELECT global_seq, chain, ts_ms, oldest, anchor, journal_id, epoch, id FROM tape_head ORDER BY id LIMIT 2"
        )
    except UNAVAILABLE:
        raise
    except Exception as error:
        problems.append(Finding(0, "head", f"the head row cannot be read: {describe(error)}"))
    if not problems and len(rows) != 1:
        problems.append(Finding(0, "head", f"there {'is no' if not rows else 'is more than one'} head row"))
    row = rows[0] if rows else (None, None, None, None, None, None, None, None)
    ends = _read_ends(reader)
    global_seq = _number("global_seq", row[0], ends[1], problems, rows)
    oldest = _number("oldest", row[3], ends[0], problems, rows)
    chain = _digest("chain", row[1], problems, rows)
    anchor = _digest("anchor", row[4], problems, rows)
    if not anchor and oldest == 1:
        anchor = GENESIS
    elif oldest == 1 and anchor != GENESIS:
        problems.append(Finding(1, "head", "nothing was pruned, yet the anchor is not the chain's beginning"))
    elif oldest < 1:
        problems.append(Finding(1, "head", f"the oldest entry is {oldest}; numbers begin with 1"))
        oldest = max(ends[0], 1)
    if oldest > global_seq + 1:
        problems.append(Finding(oldest, "head", f"the oldest entry is {oldest}, the newest {global_seq}"))
    journal_id, epoch, ts_ms = row[5], row[6], row[2]
    if rows and not (isinstance(journal_id, str) and isinstance(epoch, int) and isinstance(ts_ms, int) and row[7] == 1):
        problems.append(Finding(0, "head", "the head row has a value that was never written"))
        journal_id, epoch, ts_ms = "", 1, 0
    return Head(global_seq, chain, ts_ms or 0, oldest, anchor, journal_id or "", epoch or 1), problems


def _read_ends(reader: Reader) -> tuple[int, int]:
    """The lowest and the highest number of an entry; 1 and 0 if there is none, or that cannot be read."""
    try:
        lowest, highest = (reader.query(f"SELECT {end}(global_seq) FROM tape_journal")[0][0] for end in ("min", "max"))
    except UNAVAILABLE:
        raise
    except Exception:
        return 1, 0
    return (lowest if isinstance(lowest, int) else 1), (highest if isinstance(highest, int) else 0)


def _number(name: str, value: object, instead: int, problems: list[Finding], rows: list[Any]) -> int:
    if isinstance(value, int):
        return value
    if rows:
        problems.append(Finding(0, "head", f"{name} of the head row is {value!r:.40}, not a number"))
    return instead


def _digest(name: str, value: object, problems: list[Finding], rows: list[Any]) -> bytes:
    if isinstance(value, bytes) and len(value) == CHAIN_BYTES:
        return value
    if rows:
        problems.append(Finding(0, "head", f"{name} of the head row is not a value of 32 bytes"))
    return b""
