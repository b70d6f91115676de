"""Comparison of the last seqs of runs with their entries: a wrong one gives a seq out twice, or leaves some out."""

from __future__ import annotations

from collections.abc import Iterator

from tape.journal.findings import Finding
from tape.journal.salvage import read_windows
from tape.store import Reader

WINDOW = 10_000
PAGE = 1_000
_TOO_LOW = (
    "SELECT a.global_seq FROM tape_journal AS a WHERE a.global_seq >= ? AND a.global_seq <= ? AND NOT EXISTS"
    " (SELECT 1 FROM tape_run_heads AS h WHERE h.run_id = a.run_id AND h.tenant = a.tenant AND h.seq >= a.seq)"
    " ORDER BY a.global_seq"
)
_PAGE = f"SELECT run_id, tenant, seq FROM tape_run_heads{{}} ORDER BY run_id, tenant LIMIT {PAGE}"


def find_low_run_heads(reader: Reader, first: int, last: int) -> Iterator[Finding]:
    """The entries of a range whose run has no head, or one below their seq."""
    for low, high in read_windows(reader, first, last, WINDOW):
        for (number,) in reader.query(_TOO_LOW, low, high):
            yield Finding(number, "head", "tape_run_heads has no row of its run, or one with a lower seq")


def find_high_run_heads(reader: Reader) -> Iterator[Finding]:
    """Runs whose head is above their last entry, although nothing was pruned and no epoch says why.

    A run that several tenants share has the same head for each of them, so an entry of any tenant explains it.
    """
    found = reader.query(_PAGE.format(""))
    while found:
        for run_id, tenant, seq in found:
            yield from _check(reader, run_id, tenant, seq)
        found = reader.query(_PAGE.format(" WHERE (run_id, tenant) > (?, ?)"), *found[-1][:2])


def _check(reader: Reader, run_id: str, tenant: str, seq: int) -> Iterator[Finding]:
    if reader.one("SELECT 1 FROM tape_journal WHERE run_id = ? AND tenant = ? AND seq = ?", run_id, tenant, seq):
        return
    # In one statement: a run goes on meanwhile.
    row = reader.one(
        "SELECT h.seq, (SELECT max(global_seq) FROM tape_journal j WHERE j.run_id = h.run_id AND j.tenant = h.tenant)"
        " FROM tape_run_heads h WHERE h.run_id = ? AND h.tenant = ?"
        " AND NOT EXISTS (SELECT 1 FROM tape_journal j WHERE j.run_id = h.run_id AND j.seq = h.seq)"
        " AND NOT EXISTS (SELECT 1 FROM tape_run_gaps g"
        " WHERE g.run_id = h.run_id AND g.tenant = h.tenant AND g.resumes_at = h.seq + 1)",
        run_id,
        tenant,
    )
    if row is not None:
        detail = f"tape_run_heads has seq {row[0]} for the run {run_id!r}, which no entry of the run has"
        yield Finding(row[1] or 0, "head", detail)
