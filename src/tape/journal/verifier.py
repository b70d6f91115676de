"""Verification of the journal: every entry against its chain value, from the anchor to the head."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from tape.errors import StoreDamaged
from tape.journal.appender import Head, read_head
from tape.model.chain import GENESIS, canonical, link
from tape.store import Reader

CHUNK = 5_000

Problem = Literal["altered", "missing", "unreadable", "unproven", "head"]

_FIELDS = (
    "global_seq, seq, ts_ms, schema_version, run_id, kind, subject, payload_json,"
    ' trace_id, span_id, parent_span_id, tenant, "user", session, chain'
)


class Finding(msgspec.Struct, frozen=True):
    """A problem at one entry of the journal."""

    global_seq: int
    problem: Problem
    detail: str


class VerifyReport(msgspec.Struct):
    """The outcome of a walk over the whole journal."""

    oldest: int
    head: int
    entries: int = 0
    findings: list[Finding] = msgspec.field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


def verify(reader: Reader, progress: Callable[[int, int], None] = lambda done, total: None) -> VerifyReport:
    """Walk the journal and name every entry that is not what was written; damage does not stop the walk.

    The journal may be written to, and pruned, meanwhile: the walk ends at the head it began with.
    """
    head = read_head(reader)
    report = VerifyReport(head.oldest, head.global_seq)
    if head.oldest == 1 and head.anchor != GENESIS:
        report.findings.append(Finding(1, "head", "nothing was pruned, yet the anchor is not the chain's beginning"))
    walk = ChainWalk(report, head.anchor)
    total = head.global_seq - head.oldest + 1
    for start in range(head.oldest, head.global_seq + 1, CHUNK):
        end = min(start + CHUNK, head.global_seq + 1)
        for row in walk.rows(reader, start, end):
            walk.check(row)
        walk.skip_to(end)
        progress(end - head.oldest, total)
    walk.finish(head)
    report.findings += _find_outside(reader)
    _drop_pruned(report, read_head(reader).oldest)
    report.findings.sort(key=lambda finding: finding.global_seq)
    return report


class ChainWalk:
    """The chain as far as it was followed.

    After an altered entry either its stored or its recomputed chain value may be the true one:
    the next entry is accepted if it fits one of them, so one change is reported once.
    """

    def __init__(self, report: VerifyReport, anchor: bytes) -> None:
        self._report = report
        self._previous: tuple[bytes, ...] = (anchor,)
        self._next = report.oldest
        self._unreadable: set[int] = set()

    def rows(self, reader: Reader, start: int, end: int) -> Iterator[tuple[object, ...]]:
        """The entries of a range; where the file is damaged, all that can still be read."""
        try:
            yield from reader.query(
                f"SELECT {_FIELDS} FROM tape_journal WHERE global_seq >= ? AND global_seq < ? ORDER BY global_seq",
                start,
                end,
            )
        except StoreDamaged as error:
            if end - start == 1:
                self._unreadable.add(start)
                self._add(start, "unreadable", str(error))
                return
            middle = (start + end) // 2
            yield from self.rows(reader, start, middle)
            yield from self.rows(reader, middle, end)

    def check(self, row: tuple[object, ...]) -> None:
        """Follow the chain over one entry."""
        global_seq, seq, ts_ms, schema_version, *texts, chain = row
        assert isinstance(global_seq, int)
        assert isinstance(chain, bytes)
        self.skip_to(global_seq)
        self._next = global_seq + 1
        self._report.entries += 1
        try:
            sealed = canonical(global_seq, seq, ts_ms, schema_version, texts)  # type: ignore[arg-type]  # packing checks
        except Exception as error:
            self._add(global_seq, "altered", f"a field has a value that was never written: {error}")
            self._previous = (chain,)
            return
        expected = [link(previous, sealed) for previous in self._previous]
        if chain in expected:
            self._previous = (chain,)
        elif expected:
            self._add(
                global_seq,
                "altered",
                f"its content gives the chain value {expected[0].hex()}, not {chain.hex()}",
            )
            self._previous = (chain, *expected)
        else:
            self._add(global_seq, "unproven", "follows a hole: nothing is left to check it against")
            self._previous = (chain,)

    def skip_to(self, global_seq: int) -> None:
        """Everything between the last entry and this one is gone."""
        if self._next < global_seq:
            for gone in range(self._next, global_seq):
                if gone not in self._unreadable:
                    self._add(gone, "missing", "there is no such entry")
            self._previous = ()
            self._next = global_seq

    def finish(self, head: Head) -> None:
        """The newest entry must be the one the head row speaks of."""
        if self._previous and head.chain not in self._previous:
            self._add(head.global_seq, "head", "the head row holds another chain value than the newest entry")

    @property
    def chain(self) -> bytes:
        """The chain value of the entry that was followed last."""
        return self._previous[0] if self._previous else b""

    def _add(self, global_seq: int, problem: Problem, detail: str) -> None:
        self._report.findings.append(Finding(global_seq, problem, detail))


def _find_outside(reader: Reader) -> Iterator[Finding]:
    """Entries before the oldest or beyond the head: rows were added, or the head row was changed."""
    for global_seq, where in reader.query(
        "SELECT global_seq, 'beyond the head' FROM tape_journal"
        " WHERE global_seq > (SELECT global_seq FROM tape_head WHERE id = 1)"
        " UNION ALL SELECT global_seq, 'before the oldest retained entry' FROM tape_journal"
        " WHERE global_seq < (SELECT oldest FROM tape_head WHERE id = 1)"
    ):
        yield Finding(global_seq, "altered", f"lies {where}: it was added, or the head row was changed")


def _drop_pruned(report: VerifyReport, oldest: int) -> None:
    """What retention removed during the walk is not missing."""
    if oldest > report.oldest:
        report.findings = [
            finding
            for finding in report.findings
            if finding.global_seq > oldest or (finding.global_seq == oldest and finding.problem != "unproven")
        ]
