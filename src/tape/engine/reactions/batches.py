"""Batches: one task and one run for many messages. A message that it has failed gets a task and a run of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tape.base import structs
from tape.base.ids import new_time_ordered_id
from tape.engine.ledgers import summary_runs
from tape.engine.ledgers.run_record import PLAYBOOKS, Run
from tape.engine.reactions import commands, downstreams
from tape.engine.reactions.task_order import WAITS_MS
from tape.journal.appender import append
from tape.model import subject
from tape.model.entry import Draft
from tape.model.ledger_states import RunStatus
from tape.model.payload import to_json
from tape.model.reaction_states import TaskStatus
from tape.store import Transaction
from tape.store.records import row_of

if TYPE_CHECKING:
    from tape.engine.reactions.tasks import Task

# A message that the playbook wants to see again is tried after this.
RETRY_MS = 1_000


class _Failed(msgspec.Struct, frozen=True):
    index: int
    result: str = "retry"
    reason: str = ""


class _Detail(msgspec.Struct, frozen=True):
    failed: list[_Failed] = []
    error: dict[str, Any] = {}


def split(tx: Transaction, task: Task, run: Run, now: int) -> None:
    """Give each message that a batch has failed a task of its own: to be tried alone, or as a dead letter.

    If the run of the batch failed as a whole, it is not known because of which message: each is tried alone, now. The
    tasks have the position of the batch among the tasks of its ordering key.
    """
    if run.status is RunStatus.CANCELLED:
        return
    entry, command = summary_runs.read_shared(tx, run.run_id)
    detail = structs.decode(run.detail_json or "{}", _Detail)
    is_whole = run.status is not RunStatus.TERMINAL
    failed = [_Failed(index) for index in range(len(command.runs))] if is_whole else detail.failed
    rows = tx.query(
        "SELECT shard FROM tape_tasks WHERE reaction_id = ? AND source_global_seq = ? AND shard > 0",
        task.reaction_id,
        task.source_global_seq,
    )
    apart = {shard for (shard,) in rows}  # of an earlier end of the same run, which was retried
    failed = [each for each in failed if each.index + 1 not in apart]
    if not failed:
        return
    is_held = task.downstream in downstreams.find_held(tx, {task.downstream} - {""})
    singles: list[Task] = []
    for each in failed:
        part = command.runs[each.index]
        run_id = str(int(run.run_id) + 1 + each.index)
        trace_id, span_id = part.trace_ids
        is_dead = each.result == "dead_letter"
        waits = is_held or (bool(task.ordering_key) and any(one.status == TaskStatus.PENDING for one in singles))
        due = WAITS_MS if waits else now if is_whole else now + RETRY_MS
        singles.append(
            msgspec.structs.replace(
                task,
                task_id=new_time_ordered_id(now),
                shard=each.index + 1,
                source_run_id=run_id,
                payload_json=to_json(command.command_of(each.index, run_id)),
                status=TaskStatus.DLQ if is_dead else TaskStatus.PENDING,
                attempts=1 if is_dead else 0,
                next_attempt_at_ms=0 if is_dead else due,
                lease_owner="",
                lease_expires_at_ms=0,
                last_error=each.reason,
                created_at_ms=now,
                completed_at_ms=now if is_dead else 0,
                trace_id=trace_id,
                parent_span_id=span_id,
                is_summary=True,
                batch=1,
            )
        )
    tx.insert("tape_tasks", task.__struct_fields__, [row_of(single) for single in singles])
    listed = [
        {"message_id": command.runs[each.index].message_id, "run_id": single.source_run_id, "result": each.result}
        | ({"reason": each.reason} if each.reason else {})
        for each, single in zip(failed, singles, strict=True)
    ]
    append(tx, [_draft(run, command.pool, listed, entry.session)])
    for single in singles:
        if single.status == TaskStatus.DLQ:
            commands.fail_run(tx, single)


def _draft(run: Run, pool: str, listed: Sequence[dict[str, str]], session: str) -> Draft:
    return Draft(
        subject=subject.build("run", "split", PLAYBOOKS, pool),
        kind="run",
        run_id=run.run_id,
        payload_json=to_json({"run_id": run.run_id, "messages": listed}),
        tenant=run.tenant,
        session=session,
    )
