"""The appender of a transaction: entries are numbered and chained in memory and written once, at its commit.

The head row of the journal has the last `global_seq`. The writer's transaction excludes every other writer of
the database, so the numbers have no gap and their order is the order of commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tape.base.clock import now_ms
from tape.model.chain import canonical, link
from tape.model.entry import COLUMNS, Draft, Entry
from tape.store import Reader, Transaction

# Run heads kept in memory between transactions.
MAX_CACHED_RUNS = 20_000


_REQUEST_COLUMNS = ("request_id", "tenant", "first_global_seq", "entries", "ts_ms", "digest")


class Head(msgspec.Struct, frozen=True, gc=False):
    """Both ends of the journal. `anchor` is the chain value just before the oldest entry."""

    global_seq: int
    chain: bytes
    ts_ms: int
    oldest: int
    anchor: bytes


def read_head(reader: Reader | Transaction) -> Head:
    """The journal's head as committed, or as this transaction sees it."""
    row = reader.one("SELECT global_seq, chain, ts_ms, oldest, anchor FROM tape_head WHERE id = 1")
    assert row is not None, "the migration puts the head row there"
    return Head(*row)


class Appender:
    """The entries that the current transaction has appended; a participant of it."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        head = read_head(tx)
        self._global_seq = head.global_seq
        self._chain = head.chain
        # Timestamps never decrease along the journal, so a time can be found by bisection.
        self._least_ms = head.ts_ms
        self._ts_ms = max(now_ms(), head.ts_ms)
        self._run_seqs = self._cached_run_seqs(head)
        self._undo: list[tuple[str, int]] = []
        self._entries: list[Entry] = []
        self._requests: list[tuple[str, str, int, int, int, bytes]] = []
        self._causes: list[tuple[int, str]] = []

    def append(self, drafts: Sequence[Draft]) -> list[Entry]:
        """Number and chain checked drafts."""
        self._load_runs({draft.run_id for draft in drafts})
        entries = []
        global_seq, chain, ts_ms, run_seqs = self._global_seq, self._chain, self._ts_ms, self._run_seqs
        undo = self._undo
        for draft in drafts:
            global_seq += 1
            run_id = draft.run_id
            seq = run_seqs[run_id]
            undo.append((run_id, seq))
            seq += 1
            run_seqs[run_id] = seq
            texts = (
                run_id,
                draft.kind,
                draft.subject,
                draft.payload_json,
                draft.trace_id,
                draft.span_id,
                draft.parent_span_id,
                draft.tenant,
                draft.user,
                draft.session,
            )
            if draft.cause:
                self._causes.append((global_seq, draft.cause))
            chain = link(chain, canonical(global_seq, seq, ts_ms, draft.schema_version, texts))
            entries.append(
                Entry(
                    global_seq,
                    run_id,
                    seq,
                    draft.kind,
                    draft.subject,
                    draft.payload_json,
                    draft.schema_version,
                    draft.trace_id,
                    draft.span_id,
                    draft.parent_span_id,
                    ts_ms,
                    draft.tenant,
                    draft.user,
                    draft.session,
                    chain,
                )
            )
        self._global_seq, self._chain = global_seq, chain
        self._entries += entries
        return entries

    def record_request(self, request_id: str, tenant: str, answer: range, digest: bytes) -> None:
        """Record the answer of a request, so that a repetition gets the same one."""
        self._requests.append((request_id, tenant, answer.start, len(answer), self._ts_ms, digest))

    @property
    def global_seq(self) -> int:
        """The last global_seq, including the entries of this transaction."""
        return self._global_seq

    def cache_run_seq(self, run_id: str, seq: int) -> None:
        """Set the last seq of a run that the caller has just read, unless it is cached already."""
        self._run_seqs.setdefault(run_id, seq)

    def run_seq(self, run_id: str) -> int:
        """The last seq of a run, including what this transaction has appended."""
        self._load_runs([run_id])
        return self._run_seqs[run_id]

    @property
    def ts_ms(self) -> int:
        """The time of this transaction's entries."""
        return self._ts_ms

    def set_time(self, ts_ms: int) -> None:
        """Set the time of the next entries, for generated history; it never goes back."""
        self._ts_ms = self._least_ms = max(ts_ms, self._least_ms)

    def mark(self) -> object:
        return self._global_seq, self._chain, len(self._entries), len(self._requests)

    def rewind(self, mark: object) -> None:
        assert isinstance(mark, tuple)
        self._global_seq, self._chain, count, requests = mark
        while self._causes and self._causes[-1][0] > self._global_seq:
            self._causes.pop()
        del self._requests[requests:]
        while len(self._entries) > count:
            self._entries.pop()
            run_id, seq = self._undo.pop()
            self._run_seqs[run_id] = seq

    def flush(self) -> None:
        """Write entries, run heads and the head, and announce the entries."""
        tx = self._tx
        tx.memory[Appender] = (self._global_seq, self._chain, self._run_seqs)
        if not self._entries:
            return
        tx.insert("tape_journal", COLUMNS, [msgspec.structs.astuple(entry) for entry in self._entries])
        tx.insert("tape_append_requests", _REQUEST_COLUMNS, self._requests)
        if self._causes:
            tx.insert("tape_entry_causes", ("global_seq", "reaction_id"), self._causes)
        touched = {entry.run_id for entry in self._entries}
        tx.upsert(
            "tape_run_heads",
            ["run_id"],
            ["run_id", "seq"],
            [(run_id, self._run_seqs[run_id]) for run_id in touched],
        )
        tx.execute(
            "UPDATE tape_head SET global_seq = ?, chain = ?, ts_ms = ? WHERE id = 1",
            self._global_seq,
            self._chain,
            self._ts_ms,
        )
        tx.announce(self._entries)

    def _cached_run_seqs(self, head: Head) -> dict[str, int]:
        """The run heads that this connection cached, if no other process has written since."""
        global_seq, chain, run_seqs = self._tx.memory.pop(Appender, (0, b"", {}))
        if (global_seq, chain) == (head.global_seq, head.chain) and len(run_seqs) < MAX_CACHED_RUNS:
            return run_seqs  # type: ignore[no-any-return]  # only this class puts it there
        return {}

    def _load_runs(self, run_ids: Iterable[str]) -> None:
        unknown = [run_id for run_id in run_ids if run_id not in self._run_seqs]
        if unknown:
            condition, values = self._tx.is_any("run_id", unknown)
            self._run_seqs |= dict.fromkeys(unknown, 0)
            self._run_seqs |= dict(self._tx.query(f"SELECT run_id, seq FROM tape_run_heads WHERE {condition}", values))


def append(tx: Transaction, drafts: Sequence[Draft]) -> list[Entry]:
    """Append checked drafts within a transaction: the way in for every ledger."""
    return tx.enlist(Appender).append(drafts)
