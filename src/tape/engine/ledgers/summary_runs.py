"""Runs that are kept as a summary (`record: summary`): begun by an entry that many share, ended by another one.

Such a run has no row of its own. It is what the journal says of it: the command that began it, and the entry
`run.summary` that names it when it has ended well. Its task says whether it runs now. A run of which more has to be
kept, because it failed, waits, was cancelled or has an effect, gets a row of `tape_runs` (`expand`) and keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from tape.base.clock import now_ms
from tape.base.structs import resolve
from tape.engine.ledgers.run_record import PLAYBOOKS, Run
from tape.errors import EntryDamaged
from tape.journal.appender import Appender
from tape.journal.entries import ALTERED, SELECT
from tape.model import subject
from tape.model.checksum import COUNT, checksum
from tape.model.entry import Draft, Entry
from tape.model.execution_ids import MAX_ID, split_id
from tape.model.ledger_states import RunStatus
from tape.model.payload import to_json
from tape.model.reaction_states import POOL, TaskStatus
from tape.model.summary_command import MARK, SummaryCommand
from tape.model.tenant_names import plain_name
from tape.store import Reader, Transaction
from tape.store.records import insert

# The lease of a run that gets a row because its worker writes to it. Workers renew it after that.
EXPANDED_LEASE_MS = 30_000
# Entries about ended runs that are read at once.
_PAGE = 256


class SummaryRun(Run, frozen=True):
    """A run without a row."""


class EndedRun(msgspec.Struct, frozen=True):
    """A run that has ended well."""

    run_id: str
    tenant: str
    pool: str


def is_summary(run: Run) -> bool:
    """Whether a run has no row of its own."""
    return isinstance(run, SummaryRun)


def find(reader: Reader | Transaction, run_id: str) -> Run | None:
    """The run with that id from the journal, or None. The caller checks whose it is, and that it has no row."""
    begun = find_begin(reader, run_id)
    if begun is None:
        return None
    entry, command, index = begun
    part = command.runs[index]
    tenant = "" if entry.tenant == PLAYBOOKS else entry.tenant
    path = plain_name(command.path)
    labels = {
        "path": path,
        "version": str(command.version),
        "catalog_id": command.catalog_id,
        "pool": command.pool,
        "parent_execution_id": command.parent_execution_id,
        "subscription": command.subscription,
        "message_id": part.message_id,
        "record": command.record,
    }
    run = SummaryRun(
        run_id=run_id,
        app_name=PLAYBOOKS,
        user_id="",
        session_id=command.subscription,
        invocation_id=run_id,
        status=RunStatus.RUNNABLE,
        started_at_ms=entry.ts_ms,
        agent_id=path,
        labels_json=to_json({f"tape.{name}": text for name, text in labels.items() if text}),
        tenant_id=tenant,
        tenant=entry.tenant,
    )
    row = reader.one(
        "SELECT status FROM tape_tasks WHERE reaction_id = ? AND source_global_seq = ? AND shard = ?",
        f"{POOL}{command.pool}",
        entry.global_seq,
        index,
    )
    if row is not None:
        is_claimed = row[0] == TaskStatus.CLAIMED
        return msgspec.structs.replace(run, status=RunStatus.RUNNING if is_claimed else RunStatus.RUNNABLE)
    ended_at_ms = _find_end(reader, entry, command.pool, int(run_id))
    if not ended_at_ms:
        return run  # the matcher has not come to its command yet
    return msgspec.structs.replace(run, status=RunStatus.TERMINAL, ended_at_ms=ended_at_ms)


def expand(tx: Transaction, run: Run, owner: str) -> Run:
    """The run with a row of its own, leased to the owner if there is one. A run that has ended stays as it is."""
    if run.status is RunStatus.TERMINAL:
        return run
    seq = tx.enlist(Appender).run_seq((run.run_id, run.tenant))
    fields = msgspec.structs.asdict(run) | {"seq_cursor": seq}
    if owner:
        lease = {"lease_owner": owner, "lease_expires_at_ms": now_ms() + EXPANDED_LEASE_MS}
        fields |= {"status": RunStatus.RUNNING, **lease}
    row = Run(**fields)
    insert(tx, "tape_runs", row)
    return row


def end_runs(tx: Transaction, ended: Iterable[EndedRun]) -> None:
    """Append that runs have ended well: one entry for each tenant and pool."""
    groups: dict[tuple[str, str], list[int]] = {}
    for run in ended:
        groups.setdefault((run.tenant, run.pool), []).append(int(run.run_id))
    drafts = []
    for (tenant, pool), ids in groups.items():
        payload = {"app": PLAYBOOKS, "pool": pool, "status": "terminal", "runs": list(_written(sorted(ids)))}
        drafts.append(
            Draft(subject=_subject(pool), kind="run", run_id="", payload_json=to_json(payload), tenant=tenant)
        )
    if drafts:
        tx.enlist(Appender).append(drafts)


def is_block_taken(tx: Transaction, block: int, last: int) -> bool:
    """Whether another process has made ids of the same block."""
    sql = "SELECT 1 FROM tape_run_heads WHERE run_id >= ? AND run_id <= ? LIMIT 1"
    return tx.one(sql, str(block), str(last)) is not None


def parts_of(entry: Entry) -> Sequence[Entry] | None:
    """The commands of the runs that share an entry, as if each had one of its own; None for any other entry."""
    if entry.kind != "command" or not entry.payload_json.startswith(MARK):
        return None
    command = _decode(entry.payload_json)
    block = int(entry.run_id)
    found = []
    for index, part in enumerate(command.runs):
        run_id = str(block + index)
        trace_id, span_id = part.trace_ids
        found.append(
            msgspec.structs.replace(
                entry,
                run_id=run_id,
                payload_json=to_json(command.command_of(index, run_id)),
                trace_id=trace_id,
                span_id=span_id,
            )
        )
    return found


def find_command(reader: Reader | Transaction, run_id: str) -> dict[str, Any] | None:
    """The command that began a run of a playbook, with its payload; None if the journal does not have it any more."""
    rows = reader.query(f"{SELECT} WHERE run_id = ? AND kind = 'command' ORDER BY global_seq LIMIT 1", run_id)
    if rows:
        fields = rows[0][:COUNT]
        if checksum(fields) != rows[0][COUNT]:
            raise EntryDamaged(fields[0], fields[0], ALTERED)
        entry = Entry(*fields)
        if not entry.payload_json.startswith(MARK):
            found: dict[str, Any] = msgspec.json.decode(entry.payload_json)
            return found
    begun = find_begin(reader, run_id)
    return None if begun is None else begun[1].command_of(begun[2], run_id)


def _subject(pool: str) -> str:
    return subject.build("run", "summary", PLAYBOOKS, pool)


def _decode(payload_json: str) -> SummaryCommand:
    resolve(SummaryCommand)
    return msgspec.json.decode(payload_json, type=SummaryCommand)


def find_begin(reader: Reader | Transaction, run_id: str) -> tuple[Entry, SummaryCommand, int] | None:
    """The entry that began a run, and its number there."""
    if not (run_id.isascii() and run_id.isdecimal() and len(run_id) <= len(str(MAX_ID))):
        return None
    split = split_id(int(run_id))
    if split is None:
        return None
    block, index = split
    rows = reader.query(f"{SELECT} WHERE run_id = ? AND kind = 'command' ORDER BY global_seq LIMIT 1", str(block))
    if not rows:
        return None
    fields = rows[0][:COUNT]
    if checksum(fields) != rows[0][COUNT]:
        raise EntryDamaged(fields[0], fields[0], ALTERED)
    entry = Entry(*fields)
    if not entry.payload_json.startswith(MARK):
        return None
    command = _decode(entry.payload_json)
    return (entry, command, index) if index < len(command.runs) else None


def _find_end(reader: Reader | Transaction, begun: Entry, pool: str, run_id: int) -> int:
    """When a run ended, in ms; 0 if the journal does not say so. Ends are close behind what began."""
    after = begun.global_seq
    while True:
        rows = reader.query(
            "SELECT global_seq, ts_ms, payload_json FROM tape_journal WHERE subject = ? AND global_seq > ?"
            " AND tenant = ? ORDER BY global_seq LIMIT ?",
            _subject(pool),
            after,
            begun.tenant,
            _PAGE,
        )
        for _, ts_ms, payload_json in rows:
            if any(first <= run_id <= last for first, last in _read(payload_json)):
                return int(ts_ms)
        if len(rows) < _PAGE:
            return 0
        after = rows[-1][0]


def _written(ids: Sequence[int]) -> Iterator[str]:
    """Ids as texts: `ID`, or `ID+N` for an id and the N ids after it."""
    first = last = -1
    for each in ids:
        if each == last + 1 and first >= 0:
            last = each
            continue
        if first >= 0:
            yield _range(first, last)
        first = last = each
    if first >= 0:
        yield _range(first, last)


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}+{last - first}"


def _read(payload_json: str) -> Iterator[tuple[int, int]]:
    content: dict[str, Any] = msgspec.json.decode(payload_json)
    for text in content["runs"]:
        first, _, more = text.partition("+")
        yield int(first), int(first) + int(more or 0)
