"""Creation of tasks from matches. With a debounce, matches of one subject within that time become one task."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tape.base.ids import new_time_ordered_id
from tape.engine.ledgers import summary_runs
from tape.engine.reactions.downstreams import find_held
from tape.engine.reactions.matches import Match
from tape.engine.reactions.new_tasks import NewTasks
from tape.engine.reactions.reaction import Reaction
from tape.engine.reactions.simulation import SimulatedTask
from tape.engine.reactions.task_order import (
    UNCONDITIONAL,
    WAITS_MS,
    TaskConditions,
    conditions_of,
    find_open_keys,
)
from tape.engine.reactions.tasks import COLUMNS, PENDING, Task
from tape.model.reaction_states import POOL
from tape.store import Transaction
from tape.store.records import load_all


def enqueue(tx: Transaction, matches: Sequence[Match], now: int) -> int:
    """Create tasks for matches, in the order of the journal; the number of new tasks."""
    new = create_tasks(tx, matches, now)
    new.insert(tx)
    return len(new)


def create_tasks(tx: Transaction, matches: Sequence[Match], now: int) -> NewTasks:
    """Create tasks for matches, in the order of the journal, and leave it to the caller to insert them."""
    matches = [part for match in matches for part in _parts(match)]
    rows = []
    debounced: dict[str, list[Match]] = {}
    conditions = [conditions_of(match.compiled.reaction.reaction_id, match.entry) for match in matches]
    busy = _find_busy_keys(tx, matches, conditions)
    held = find_held(tx, {each.downstream for each in conditions if each.downstream})
    for match, condition in zip(matches, conditions, strict=True):
        reaction = match.compiled.reaction
        if reaction.debounce_ms:
            debounced.setdefault(reaction.reaction_id, []).append(match)
        else:
            # A task is due from the time of its entry: the queue has the order of the journal, and new tasks
            # cannot starve a retried one.
            due, lane = min(match.entry.ts_ms, now), (reaction.reaction_id, condition.ordering_key)
            if condition.downstream in held or lane in busy:
                due = WAITS_MS
            if condition.ordering_key:
                busy.add(lane)
            rows.append(_row(match, due, now, conditions=condition))
    for group in debounced.values():
        rows += _coalesce(tx, group[0].compiled.reaction, group, now)
    return NewTasks(rows)


def _parts(match: Match) -> Sequence[Match]:
    """The matches of a command: one for each run that it begins. Their number stands for the shard: a pool has one."""
    is_pool = match.compiled.reaction.reaction_id.startswith(POOL)
    parts = summary_runs.parts_of(match.entry) if is_pool else None
    return [match] if parts is None else [Match(match.compiled, index, entry) for index, entry in enumerate(parts)]


def enqueue_backfill(tx: Transaction, fired: Sequence[SimulatedTask[Match]], now: int) -> int:
    """Create tasks for simulated matches of the past. They are due now and are not debounced further."""
    new = NewTasks(
        [
            _row(one.newest, min(one.due_ms, now), now, one.first.entry.global_seq, one.coalesced, is_open=False)
            for one in fired
        ]
    )
    new.insert(tx)
    return len(new)


def _row(
    match: Match,
    due: int,
    now: int,
    first: int = 0,
    coalesced: int = 0,
    *,
    is_open: bool = True,
    conditions: TaskConditions = UNCONDITIONAL,
) -> tuple[object, ...]:
    """A row of tape_tasks; while it `is_open`, a newer entry of its subject replaces its entry."""
    entry, reaction = match.entry, match.compiled.reaction
    return (
        new_time_ordered_id(now),
        reaction.reaction_id,
        match.shard,
        entry.run_id,
        entry.global_seq,
        entry.subject,
        entry.payload_json,
        int(PENDING),
        0,
        due,
        "",
        0,
        "",
        now,
        0,
        entry.trace_id,
        entry.span_id,
        first or entry.global_seq,
        coalesced,
        0,
        int(is_open and reaction.debounce_ms > 0),
        int(reaction.strict_order),
        entry.seq,
        entry.ts_ms,
        entry.schema_version,
        entry.tenant,
        conditions.ordering_key,
        conditions.downstream,
        0,
        int(conditions.is_summary),
        conditions.batch,
    )


def _find_busy_keys(
    tx: Transaction, matches: Sequence[Match], conditions: Sequence[TaskConditions]
) -> set[tuple[str, str]]:
    """The reaction ids and ordering keys of matches that have open tasks already."""
    keys: dict[str, set[str]] = {}
    for match, condition in zip(matches, conditions, strict=True):
        if condition.ordering_key:
            keys.setdefault(match.compiled.reaction.reaction_id, set()).add(condition.ordering_key)
    return {(reaction_id, key) for reaction_id, some in keys.items() for key in find_open_keys(tx, reaction_id, some)}


def _coalesce(tx: Transaction, reaction: Reaction, matches: Sequence[Match], now: int) -> list[tuple[object, ...]]:
    """Debounce on the trailing edge: the newest entry of a tenant's subject replaces that of its unclaimed task."""
    by_subject: dict[tuple[str, str], list[Match]] = {}
    for match in matches:
        by_subject.setdefault((match.entry.tenant, match.entry.subject), []).append(match)
    condition, subjects = tx.is_any("subject", list({subject for _, subject in by_subject}))
    rows = tx.query(
        f"SELECT {COLUMNS} FROM tape_tasks WHERE reaction_id = ? AND {condition} AND debounced = 1"
        f" AND status = {PENDING}"
        " AND attempts = 0 ORDER BY source_global_seq",
        reaction.reaction_id,
        subjects,
    )
    waiting = {(task.tenant, task.subject): task for task in load_all(Task, rows)}
    due = now + reaction.debounce_ms
    new = []
    for key, group in by_subject.items():
        task = waiting.get(key)
        if task is None:
            first = group[0].entry.global_seq
            new.append(_row(group[-1], due, now, first, len(group) - 1))
        else:
            _replace(tx, task, group, due)
    return new


def _replace(tx: Transaction, task: Task, group: Sequence[Match], due: int) -> None:
    newest = group[-1]
    entry = newest.entry
    if entry.global_seq < task.source_global_seq:
        # A shard that catches up finds an entry older than the waiting one: the newer one stays.
        tx.execute(
            "UPDATE tape_tasks SET coalesced = coalesced + ?, first_global_seq = ? WHERE task_id = ?",
            len(group),
            min(task.first_global_seq, group[0].entry.global_seq),
            task.task_id,
        )
        return
    task = msgspec.structs.replace(
        task,
        shard=newest.shard,
        source_run_id=entry.run_id,
        source_global_seq=entry.global_seq,
        payload_json=entry.payload_json,
        next_attempt_at_ms=due,
        trace_id=entry.trace_id,
        parent_span_id=entry.span_id,
        coalesced=task.coalesced + len(group),
        source_seq=entry.seq,
        source_ts_ms=entry.ts_ms,
        schema_version=entry.schema_version,
    )
    tx.execute(
        "UPDATE tape_tasks SET shard = ?, source_run_id = ?, source_global_seq = ?, payload_json = ?,"
        " next_attempt_at_ms = ?, trace_id = ?, parent_span_id = ?, coalesced = ?, source_seq = ?, source_ts_ms = ?,"
        " schema_version = ? WHERE task_id = ?",
        task.shard,
        task.source_run_id,
        task.source_global_seq,
        task.payload_json,
        task.next_attempt_at_ms,
        task.trace_id,
        task.parent_span_id,
        task.coalesced,
        task.source_seq,
        task.source_ts_ms,
        task.schema_version,
        task.task_id,
    )
