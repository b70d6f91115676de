"""Runs that are begun by an entry which many messages share: those that are kept as a summary, and batches.

A run that is kept as a summary (`record: summary`) has no row of its own. It is what the journal says of it: the
command that began it, and the entry `run.summary` that names it when it has ended well. Its task says whether it runs
now. A run of which more has to be kept, because it failed, waits, was cancelled or has an effect, gets a row of
`tape_runs` (`expand`) and keeps it. A message of a batch is found like a run: it has the state of the
batch, until it runs on its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from tape.base import structs
from tape.base.clock import now_ms
from tape.engine.ledgers.run_record import COLUMNS, PLAYBOOKS, Run
from tape.errors import EntryDamaged, NotFound
from tape.journal.appender import Appender
from tape.journal.entries import ALTERED, SELECT
from tape.journal.key_index import look_up_subject
from tape.model import subject
from tape.model.checksum import COUNT, checksum
from tape.model.entry import MAX_SEQ, Draft, Entry
from tape.model.execution_ids import MAX_ID, split_id
from tape.model.ledger_states import RunStatus
from tape.model.payload import to_json
from tape.model.reaction_states import POOL, TaskStatus
from tape.model.shared_command import MARK, SUMMARY, SharedCommand
from tape.model.tenant_names import plain_name
from tape.store import Reader, Transaction
from tape.store.records import insert, load

# The lease of a run that gets a row because its worker writes to it. Workers renew it after that.
EXPANDED_LEASE_MS = 30_000
# Entries about ended runs that are read at once.
_PAGE = 256
_OPEN = (TaskStatus.PENDING, TaskStatus.CLAIMED)


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
    run = SummaryRun(**run_fields(command, run_id, entry.tenant), started_at_ms=entry.ts_ms)
    status = _task_status(reader, entry, command.pool, index)
    if status in _OPEN:
        return _with_status(run, status)
    if ended_at_ms := _find_end(reader, entry, command.pool, int(run_id)):
        return msgspec.structs.replace(run, status=RunStatus.TERMINAL, ended_at_ms=ended_at_ms)
    if not command.batch or not index:
        return run  # the matcher has not come to its command yet
    batch = load(Run, reader.one(f"SELECT {COLUMNS} FROM tape_runs WHERE run_id = ?", entry.run_id))
    of_batch = _task_status(reader, entry, command.pool, 0)
    if of_batch in _OPEN and (batch is None or batch.status is not RunStatus.WAITING):
        return _with_status(run, of_batch)  # even if its run has ended: what becomes of its messages is written next
    batch = batch or find(reader, entry.run_id)
    if batch is None or batch.status is RunStatus.FAILED:
        return run  # it runs on its own
    return msgspec.structs.replace(
        run, status=batch.status, ended_at_ms=batch.ended_at_ms, waiting_on_gate=batch.waiting_on_gate
    )


def run_fields(command: SharedCommand, run_id: str, tenant: str) -> dict[str, Any]:
    """The fields of a run that a shared entry begins: of a message, or of a batch."""
    number = int(run_id) - (split_id(int(run_id)) or (0, 0))[0]
    index = number - 1 if command.batch else number
    is_all = index < 0
    path = plain_name(command.path)
    labels = {
        "path": path,
        "version": str(command.version),
        "catalog_id": command.catalog_id,
        "pool": command.pool,
        "parent_execution_id": command.parent_execution_id,
        "subscription": command.subscription,
        "message_id": "" if is_all and len(command.runs) > 1 else command.runs[max(index, 0)].message_id,
        "record": SUMMARY if command.record == SUMMARY else "",
        "messages": str(len(command.runs)) if is_all else "",
        "batch": str(int(run_id) - number) if command.batch and not is_all else "",
    }
    return {
        "run_id": run_id,
        "app_name": PLAYBOOKS,
        "user_id": "",
        "session_id": command.subscription,
        "invocation_id": run_id,
        "status": RunStatus.RUNNABLE,
        "agent_id": path,
        "labels_json": to_json({f"tape.{name}": text for name, text in labels.items() if text}),
        "tenant_id": "" if tenant == PLAYBOOKS else tenant,
        "tenant": tenant,
    }


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
    if command.batch:
        return [msgspec.structs.replace(entry, payload_json=to_json(command.batch_command(entry.run_id)))]
    found = []
    for index, part in enumerate(command.runs):
        run_id = str(int(entry.run_id) + index)
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
    if begun is None:
        return None
    _, command, index = begun
    if not command.batch:
        return command.command_of(index, run_id)
    return command.command_of(index - 1, run_id) if index else command.batch_command(run_id)


def read_shared(reader: Reader | Transaction, run_id: str) -> tuple[Entry, SharedCommand]:
    """The entry that began a run, and what it says. Raises NotFound if the journal has it no longer."""
    begun = find_begin(reader, run_id)
    if begun is None:
        raise NotFound(f"the command of the run {run_id!r} is not in the journal any more.")
    return begun[0], begun[1]


def _with_status(run: Run, task_status: int) -> Run:
    is_claimed = task_status == TaskStatus.CLAIMED
    return msgspec.structs.replace(run, status=RunStatus.RUNNING if is_claimed else RunStatus.RUNNABLE)


def _task_status(reader: Reader | Transaction, entry: Entry, pool: str, shard: int) -> int:
    """The status of a run's task; 0 if there is none."""
    row = reader.one(
        "SELECT status FROM tape_tasks WHERE reaction_id = ? AND source_global_seq = ? AND shard = ?",
        f"{POOL}{pool}",
        entry.global_seq,
        shard,
    )
    return 0 if row is None else int(row[0])


def _subject(pool: str) -> str:
    return subject.build("run", "summary", PLAYBOOKS, pool)


def _decode(payload_json: str) -> SharedCommand:
    return structs.decode(payload_json, SharedCommand)


def find_begin(reader: Reader | Transaction, run_id: str) -> tuple[Entry, SharedCommand, int] | None:
    """The entry that began a run, and the number of the run there."""
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
    return (entry, command, index) if index < len(command.runs) + command.batch else None


def _find_end(reader: Reader | Transaction, begun: Entry, pool: str, run_id: int) -> int:
    """When a run ended, in ms; 0 if the journal does not say so. Ends are close behind what began."""
    after = begun.global_seq
    lookup = look_up_subject(_subject(pool), where="j.tenant = ?", where_params=(begun.tenant,))
    while True:
        rows = lookup.select(reader, "global_seq, ts_ms, payload_json", after, MAX_SEQ, _PAGE)
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
