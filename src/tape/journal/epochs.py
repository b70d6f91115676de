"""Epochs: how numbers go on after the database lost entries, so that none is given out twice.

A failover to a replica that is behind, a restored backup or a damaged write-ahead log cut the journal. The cut is
closed in one transaction: the next entry is numbered above every number that is known to have been given out, the
range between is named in `tape_epochs`, and the first entry of the new epoch, `journal.diverged`, says what is gone.
The chain links that entry to the last one before the cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from tape.errors import CursorDiverged
from tape.journal.appender import Appender, Head, RunKey, read_head
from tape.model import subject
from tape.model.entry import Draft, Entry, checked
from tape.model.gap import JournalGap
from tape.store import Reader, Transaction

# Where other servers may have given out numbers that this one has not seen, so many more are left out.
DEFAULT_MARGIN = 1_000_000


class Epoch(msgspec.Struct, frozen=True):
    """An epoch after the first: no entry has a number between `cut_after` and `resumes_at`."""

    epoch: int
    cut_after: int
    resumes_at: int
    last_known: int
    cause: str
    ts_ms: int


def read_epochs(reader: Reader | Transaction, after: int = 1) -> list[Epoch]:
    """The epochs after one, in order."""
    rows = reader.query(
        "SELECT epoch, cut_after, resumes_at, last_known, cause, ts_ms FROM tape_epochs WHERE epoch > ? ORDER BY epoch",
        after,
    )
    return [Epoch(*row) for row in rows]


class RunGap(msgspec.Struct, frozen=True):
    """The seqs of a run between `after_seq` and `resumes_at` were given to entries that the database lost."""

    after_seq: int
    resumes_at: int


def read_run_gaps(reader: Reader | Transaction, run_id: str, tenant: str) -> list[RunGap]:
    """The named gaps in the seqs of a run, in order."""
    rows = reader.query(
        "SELECT after_seq, resumes_at FROM tape_run_gaps WHERE run_id = ? AND tenant = ? ORDER BY after_seq",
        run_id,
        tenant,
    )
    return [RunGap(*row) for row in rows]


class Holes:
    """The ranges of numbers that no entry has, because the database lost the entries that had them."""

    def __init__(self, epochs: Iterable[Epoch] = ()) -> None:
        self._epochs = [epoch for epoch in epochs if epoch.resumes_at > epoch.cut_after + 1]

    def __iter__(self) -> Iterator[range]:
        return (range(epoch.cut_after + 1, epoch.resumes_at) for epoch in self._epochs)

    def check_cursor(self, after: int) -> None:
        """Raise CursorDiverged for a position whose entry is lost. The last number of a hole is a position to resume
        from."""
        for hole in self:
            if hole.start <= after < hole.stop - 1:
                raise CursorDiverged(after, hole.start, hole.stop - 1)

    def skip(self, position: int) -> int:
        """The position, or the end of the hole that it is in."""
        return next((hole.stop - 1 for hole in self if position in hole), position)

    def next_number(self, number: int) -> int:
        """The number, or the first one after the hole that it is in."""
        return next((hole.stop for hole in self if number in hole), number)

    def count(self, first: int, last: int) -> int:
        """How many of the numbers from the first to the last are in holes."""
        return sum(max(min(hole.stop, last + 1) - max(hole.start, first), 0) for hole in self)

    def gaps(self, after: int, until: int) -> tuple[JournalGap, ...]:
        """The holes that a reader passes on its way from one position to another."""
        return tuple(
            JournalGap(hole.start, hole.stop - 1, "diverged", "the database lost the entries")
            for hole in self
            if hole.start <= until and hole.stop - 1 > after
        )


NO_HOLES = Holes()


def read_holes(reader: Reader | Transaction, head: Head) -> Holes:
    """The holes of a journal; a journal in its first epoch has none."""
    return NO_HOLES if head.epoch == 1 else Holes(read_epochs(reader))


def close_cut(
    tx: Transaction,
    *,
    last_known: int,
    margin: int,
    cause: str,
    run_seqs: Mapping[RunKey, int] | None = None,
    last_epoch: int = 0,
    common: int | None = None,
) -> Entry:
    """Begin a new epoch: number the next entry above `last_known` and the margin, and journal what is gone.

    Every run continues above the seqs that its lost entries may have had, which other servers may know alone: a run has
    lost no more entries than the journal. `run_seqs` has the last known seqs of runs that lost entries. `last_epoch` is
    the last known epoch, if that is lost too. `common` is the last entry that is as it was known, if that is not the
    head.
    """
    head = read_head(tx)
    appender = tx.enlist(Appender)
    epoch, resumes_at = max(head.epoch, last_epoch) + 1, max(last_known, head.global_seq) + margin + 1
    tx.execute(
        "INSERT INTO tape_epochs (epoch, cut_after, resumes_at, last_known, cause, ts_ms) VALUES (?, ?, ?, ?, ?, ?)",
        epoch,
        head.global_seq,
        resumes_at,
        last_known,
        cause,
        appender.ts_ms,
    )
    tx.execute("UPDATE tape_head SET epoch = ? WHERE id = 1", epoch)
    appender.forget_runs()
    _advance_runs(tx, epoch, resumes_at - head.global_seq - 1, run_seqs or {})
    appender.resume_at(resumes_at)
    appender.epoch = epoch
    facts = {
        "epoch": epoch,
        "cut_after": head.global_seq,
        "resumes_at": resumes_at,
        "last_known": last_known,
        "common": head.global_seq if common is None else common,
        "lost": max(last_known - head.global_seq, 0),
        "cause": cause,
    }
    note = Draft(subject=subject.journal_diverged(), run_id="journal", payload_json=msgspec.json.encode(facts).decode())
    return appender.append([checked(note)])[0]


def _advance_runs(tx: Transaction, epoch: int, lost: int, run_seqs: Mapping[RunKey, int]) -> None:
    """Let runs go on `lost` seqs later, and those of `run_seqs` above what is known of them, with a named gap."""
    if lost > 0:
        with tx.slow_statements():  # of all runs there are
            tx.execute(
                "INSERT INTO tape_run_gaps (run_id, tenant, epoch, after_seq, resumes_at)"
                f" SELECT run_id, tenant, ?, seq, seq + {lost + 1} FROM tape_run_heads",
                epoch,
            )
            tx.execute(f"UPDATE tape_run_heads SET seq = seq + {lost}")
    found = tx.lookup("tape_run_heads", "run_id, tenant, seq", ("run_id", "tenant"), list(run_seqs))
    present = {(run_id, tenant): seq for run_id, tenant, seq in found}
    behind = {run: max(seq, lost) for run, seq in run_seqs.items() if present.get(run, 0) < seq}
    if behind:
        gaps = [(*run, epoch, present.get(run, 0), seq + 1) for run, seq in behind.items()]
        tx.insert("tape_run_gaps", ("run_id", "tenant", "epoch", "after_seq", "resumes_at"), gaps)
        heads = [(*run, seq) for run, seq in behind.items()]
        tx.upsert("tape_run_heads", ["run_id", "tenant"], ["run_id", "tenant", "seq"], heads)
