"""The appender of a transaction: entries are numbered and chained in memory and written once, at its commit.

The head row of the journal has the last `global_seq`. The writer's transaction excludes every other writer of
the database, so the numbers have no gap and their order is the order of commits. Each tenant has its own runs: `seq`
counts the entries of one tenant in a run. In a *shared* run it counts those of all tenants, so that `(run_id, seq)`
names one entry: on servers without keys, where tenants are labels and not apart from each other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from tape.base.clock import now_ms
from tape.errors import StoreUnavailable
from tape.journal.key_index import MAX_LAG, WATERMARK, index_entries
from tape.model.chain import canonical, link
from tape.model.checksum import checksum
from tape.model.entry import COLUMNS, SYSTEM_TENANT, Draft, Entry
from tape.store import Reader, Transaction
from tape.store.tail import Tail

# Run heads kept in memory between transactions.
MAX_CACHED_RUNS = 20_000

# A run: its id and the tenant that it belongs to.
RunKey = tuple[str, str]

_REQUEST_COLUMNS = ("request_id", "tenant", "first_global_seq", "entries", "ts_ms", "digest")


class Head(msgspec.Struct, frozen=True, gc=False):
    """Both ends of the journal. `anchor` is the chain value just before the oldest entry."""

    global_seq: int
    chain: bytes
    ts_ms: int
    oldest: int
    anchor: bytes
    # Which journal this is, and how often its numbers were continued after entries were lost; the first epoch is 1.
    journal_id: str = ""
    epoch: int = 1


_HEAD_COLUMNS = "global_seq, chain, ts_ms, oldest, anchor, journal_id, epoch"


def read_head(reader: Reader | Transaction) -> Head:
    """The journal's head as committed, or as this transaction sees it."""
    row = reader.one(f"SELECT {_HEAD_COLUMNS} FROM tape_head WHERE id = 1")
    assert row is not None, "the migration puts the head row there"
    return Head(*row)


class _HasPrunedRuns:
    """The key under which a connection remembers whether `tape_pruned_runs` has a row."""


class Appender:
    """The entries that the current transaction has appended; a participant of it."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        row = tx.one(
            f"SELECT {_HEAD_COLUMNS}, {WATERMARK[tx.dialect]},"
            " (SELECT count(*) FROM tape_tenant_aliases WHERE tenant = '') FROM tape_head WHERE id = 1"
        )
        assert row is not None, "the migration puts the head row there"
        head = Head(*row[:-2])
        self._indexed = row[-2]
        # Once entries without a tenant belong to one, that tenant must not get what Tape writes for itself.
        self._own_tenant = SYSTEM_TENANT if row[-1] else ""
        self._journal_id, self.epoch = head.journal_id, head.epoch
        self._global_seq = head.global_seq
        self._chain = head.chain
        # Timestamps never decrease along the journal, so a time can be found by bisection.
        self._least_ms = head.ts_ms
        self._ts_ms = max(now_ms(), head.ts_ms)
        # The last seqs of runs, and the tenants of shared runs, whose last seqs are kept equal.
        self._run_seqs, self._shared = self._cached_runs(head)
        self._undo: list[tuple[tuple[RunKey, int], ...]] = []
        self._entries: list[Entry] = []
        self._requests: list[tuple[str, str, int, int, int, bytes]] = []
        self._causes: list[tuple[int, str]] = []

    def append(self, drafts: Sequence[Draft]) -> list[Entry]:
        """Number and chain checked drafts. One without a tenant gets that of its run, if a ledger has the run."""
        return self.number(self.inherit_tenants(drafts))

    def number(self, drafts: Sequence[Draft]) -> list[Entry]:
        """Number and chain checked drafts with the tenants that they have."""
        self.load_runs({(draft.run_id, draft.tenant) for draft in drafts})
        entries = []
        global_seq, chain, ts_ms, run_seqs = self._global_seq, self._chain, self._ts_ms, self._run_seqs
        undo, shared = self._undo, self._shared
        for draft in drafts:
            global_seq += 1
            run_id = draft.run_id
            run = (run_id, draft.tenant)
            tenants = shared.get(run_id)
            if tenants is None or (len(tenants) == 1 and draft.tenant in tenants):
                seq = run_seqs[run]
                undo.append(((run, seq),))
                seq += 1
                run_seqs[run] = seq
            else:
                seq = self._number_shared(run, tenants)
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

    def share_runs(self, drafts: Sequence[Draft]) -> None:
        """Share the runs of drafts that are numbered next."""
        unknown = {draft.run_id for draft in drafts} - self._shared.keys()
        if not unknown:
            return
        condition, values = self._tx.is_any("run_id", list(unknown))
        found = self._tx.query(f"SELECT run_id, tenant, seq FROM tape_run_heads WHERE {condition}", values)
        for run_id in unknown:
            self._shared[run_id] = set()
        for run_id, tenant, seq in found:
            self._shared[run_id].add(tenant)
            self._run_seqs.setdefault((run_id, tenant), seq)  # this transaction may know a later one
        for entry in self._entries:
            if entry.run_id in unknown:
                self._shared[entry.run_id].add(entry.tenant)
        if new := [run_id for run_id in unknown if not self._shared[run_id]]:
            pruned = self._pruned_seqs(new)
            for draft in drafts:
                if draft.run_id in new:
                    self._shared[draft.run_id].add(draft.tenant)
                    self._run_seqs.setdefault((draft.run_id, draft.tenant), pruned.get(draft.run_id, 0))

    def _number_shared(self, run: RunKey, tenants: set[str]) -> int:
        """The next seq of a run that several tenants share."""
        tenants.add(run[1])
        before = tuple(((run[0], tenant), self._run_seqs.get((run[0], tenant), 0)) for tenant in tenants)
        self._undo.append(before)
        seq = max(seq for _, seq in before) + 1
        for key, _ in before:
            self._run_seqs[key] = seq
        return seq

    def record_request(self, request_id: str, tenant: str, answer: range, digest: bytes) -> None:
        """Record the answer of a request, so that a repetition gets the same one."""
        self._requests.append((request_id, tenant, answer.start, len(answer), self._ts_ms, digest))

    def resume_at(self, global_seq: int) -> None:
        """Number the next entry so: the numbers before it were given to entries that are lost."""
        assert not self._entries, "a cut is closed before anything is appended"
        self._global_seq = max(self._global_seq, global_seq - 1)

    def forget_runs(self) -> None:
        """Read the last seqs of runs anew: they are changed in the database."""
        assert not self._entries, "a cut is closed before anything is appended"
        self._run_seqs, self._shared = {}, {}

    @property
    def global_seq(self) -> int:
        """The last global_seq, including the entries of this transaction."""
        return self._global_seq

    def cache_run_seq(self, run: RunKey, seq: int) -> None:
        """Set the last seq of a run that the caller has just read, unless it is cached already."""
        self._run_seqs.setdefault(run, seq)

    def run_seq(self, run: RunKey) -> int:
        """The last seq of a run, including what this transaction has appended."""
        self.load_runs([run])
        return self._run_seqs[run]

    def inherit_tenants(self, drafts: Sequence[Draft], *, from_client_runs: bool = False) -> Sequence[Draft]:
        """The drafts, those without a tenant with the tenant of their run, or what Tape itself writes with its own.

        Ledgers make the ids of their runs themselves, so such a run has one tenant. Clients choose the id of any other
        run: with `from_client_runs` a draft inherits from it, if exactly one tenant has entries in it. That is for an
        open server only, because another tenant could take the id to get the entries.
        """
        default = "" if from_client_runs else self._own_tenant
        run_ids = {draft.run_id for draft in drafts if not draft.tenant}
        if not default:  # a run that has entries without a tenant goes on without
            run_ids = {run_id for run_id in run_ids if not self._run_seqs.get((run_id, ""))}
        if not run_ids:
            return drafts
        condition, values = self._tx.is_any("run_id", list(run_ids))
        tenants: dict[str, str] = dict(
            self._tx.query(f"SELECT run_id, tenant FROM tape_runs WHERE {condition}", values)
        )
        if from_client_runs and (others := run_ids - tenants.keys()):
            tenants |= self._sole_tenants(others, drafts)
        if not tenants and not default:
            return drafts
        return [
            msgspec.structs.replace(draft, tenant=tenants.get(draft.run_id, default)) if not draft.tenant else draft
            for draft in drafts
        ]

    def _sole_tenants(self, run_ids: Collection[str], drafts: Sequence[Draft]) -> dict[str, str]:
        """The tenants of runs that have entries of one tenant only, also of drafts that are appended together."""
        condition, values = self._tx.is_any("run_id", list(run_ids))
        sql = f"SELECT run_id, min(tenant), max(tenant) FROM tape_run_heads WHERE {condition} GROUP BY run_id"
        found = {run_id: {first, last} for run_id, first, last in self._tx.query(sql, values)}
        pending = [(entry.run_id, entry.tenant) for entry in self._entries]
        for run_id, tenant in pending + [(draft.run_id, draft.tenant) for draft in drafts if draft.tenant]:
            if run_id in run_ids:
                found.setdefault(run_id, set()).add(tenant)
        return {run_id: names.pop() for run_id, names in found.items() if len(names) == 1}

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
            for run, seq in self._undo.pop():
                self._run_seqs[run] = seq

    def flush(self) -> None:
        """Write entries, run heads and the head, and announce the entries."""
        tx = self._tx
        tx.memory[Appender] = (self._global_seq, self._chain, self._run_seqs, self._shared)
        if not self._entries:
            return
        rows = [(*fields, checksum(fields)) for fields in map(msgspec.structs.astuple, self._entries)]
        tx.insert("tape_journal", (*COLUMNS, "checksum"), rows)
        tx.insert("tape_append_requests", _REQUEST_COLUMNS, self._requests)
        if self._causes:
            tx.insert("tape_entry_causes", ("global_seq", "reaction_id"), self._causes)
        touched = {run for runs in self._undo for run, _ in runs}
        tx.upsert(
            "tape_run_heads",
            ["run_id", "tenant"],
            ["run_id", "tenant", "seq"],
            [(*run, self._run_seqs[run]) for run in touched],
        )
        tx.execute(
            "UPDATE tape_head SET global_seq = ?, chain = ?, ts_ms = ? WHERE id = 1",
            self._global_seq,
            self._chain,
            self._ts_ms,
        )
        if tx.dialect == "sqlite" and self._global_seq - self._indexed >= MAX_LAG:
            index_entries(tx, self._indexed)
        tx.tail = Tail(self._journal_id, self.epoch, self._global_seq, self._chain)
        tx.announce(self._entries)

    def _cached_runs(self, head: Head) -> tuple[dict[RunKey, int], dict[str, set[str]]]:
        """The run heads that this connection cached, if no other process has written since."""
        global_seq, chain, run_seqs, shared = self._tx.memory.pop(Appender, (0, b"", {}, {}))
        if head.global_seq < global_seq:  # a pooler has connected to another server without a new connection of ours
            raise StoreUnavailable(
                f"The database ends with entry {head.global_seq}, this connection has written {global_seq}: it is in an"
                " older state, and is compared before anything is written. Try again."
            )
        if (global_seq, chain) == (head.global_seq, head.chain) and len(run_seqs) < MAX_CACHED_RUNS:
            return run_seqs, shared
        return {}, {}

    def load_runs(self, runs: Collection[RunKey]) -> None:
        """Read the last seqs of runs that are not cached."""
        unknown = [run for run in runs if run not in self._run_seqs]
        if not unknown:
            return
        found = self._tx.lookup("tape_run_heads", "run_id, tenant, seq", ("run_id", "tenant"), unknown)
        self._run_seqs |= {(run_id, tenant): seq for run_id, tenant, seq in found}
        if len(found) < len(unknown):
            new = [run for run in unknown if run not in self._run_seqs]
            pruned = self._pruned_seqs([run_id for run_id, _ in new])
            self._run_seqs |= {run: pruned.get(run[0], 0) for run in new}

    def _pruned_seqs(self, run_ids: Sequence[str]) -> dict[str, int]:
        """The last seqs of runs from before run ids had tenants, if it is not known whose they were."""
        memory = self._tx.memory
        if _HasPrunedRuns not in memory:  # only a migration writes the table
            memory[_HasPrunedRuns] = self._tx.one("SELECT 1 FROM tape_pruned_runs LIMIT 1") is not None
        if not memory[_HasPrunedRuns]:
            return {}
        condition, values = self._tx.is_any("run_id", run_ids)
        return dict(self._tx.query(f"SELECT run_id, seq FROM tape_pruned_runs WHERE {condition}", values))


def append(tx: Transaction, drafts: Sequence[Draft]) -> list[Entry]:
    """Append checked drafts within a transaction: the way in for every ledger."""
    return tx.enlist(Appender).append(drafts)
