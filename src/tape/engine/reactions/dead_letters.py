"""Dead letters: list, redrive and drop tasks that failed for good."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tape.base.clock import now_ms
from tape.engine.reactions import commands, tasks
from tape.engine.reactions.task_order import CHANNEL, WAITS_MS, find_open_keys
from tape.engine.reactions.tasks import CLAIMED, COLUMNS, DLQ, DONE, FAILED, PENDING, Task
from tape.errors import IllegalTransition, InvalidInput
from tape.model.ledger_states import parse
from tape.model.pattern import Pattern
from tape.model.reaction_states import TaskStatus
from tape.store import Reader, Transaction
from tape.store.records import load_all

DEFAULT_LIMIT = 200
MAX_LIMIT = 10_000
DEFAULT_BULK = 1_000
# Rows read at a time for a filter that has no index.
PAGE = 1_000


class DeadLetterFilter(msgspec.Struct, frozen=True):
    """A filter of dead letters: all conditions must hold; an empty condition always holds."""

    reaction_id: str = ""
    error_contains: str = ""
    subject_pattern: str = ""
    created_after_ms: int = 0
    created_before_ms: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether the filter has no condition: more likely a mistake than a request for all."""
        return self == DeadLetterFilter()

    def matches(self, task: Task, pattern: Pattern) -> bool:
        """Whether a task meets the conditions that SQL does not check."""
        return (
            self.error_contains in task.last_error
            and pattern.matches(task.subject)
            and task.created_at_ms > self.created_after_ms
            and (not self.created_before_ms or task.created_at_ms < self.created_before_ms)
        )


class MovedTasks(msgspec.Struct, frozen=True):
    """How many tasks were redriven or dropped, of which reactions, and whether more remain beyond the limit."""

    count: int
    reaction_ids: frozenset[str]
    more: bool


def list_tasks(
    reader: Reader,
    reaction_id: str,
    *,
    status: int = 0,
    before: int = 0,
    limit: int = 0,
    after: tuple[int, str] | None = None,
) -> list[Task]:
    """List a reaction's tasks, newest entries first. CLAIMED and DLQ tasks can be listed for all reactions.

    `after`: the source entry and the id of the last task of the page before.
    """
    wanted = parse(TaskStatus, "status", status) if status else None
    if not 0 <= limit <= MAX_LIMIT:
        raise InvalidInput(f"limit {limit} must lie between 0 and {MAX_LIMIT}; 0 means {DEFAULT_LIMIT}.")
    if not reaction_id and wanted not in (CLAIMED, DLQ):
        raise InvalidInput("reaction_id is empty; only CLAIMED and DLQ tasks are listed for all reactions together.")
    conditions = ["reaction_id = ?"] if reaction_id else []
    params: list[Any] = [reaction_id] if reaction_id else []
    if wanted in (DONE, FAILED):
        conditions += [f"status IN ({DONE}, {FAILED})", f"status = {wanted}"]
    elif wanted is not None:
        conditions.append(f"status = {wanted}")
    if before > 0:
        conditions.append("source_global_seq < ?")
        params.append(before)
    visible, tenant = tasks.visible_condition()
    params += tenant
    limit = limit or DEFAULT_LIMIT
    found: list[Task] = []
    while True:
        older = "" if after is None else " AND (source_global_seq, task_id) < (?, ?)"
        rows = reader.query(
            f"SELECT {COLUMNS} FROM tape_tasks WHERE {' AND '.join(conditions)}{visible}{older}"
            " ORDER BY source_global_seq DESC, task_id DESC LIMIT ?",
            *params,
            *(after or ()),
            limit,
        )
        page = load_all(Task, rows)
        found += tasks.granted(page)
        if len(found) >= limit or len(page) < limit:
            return found[:limit]
        after = (page[-1].source_global_seq, page[-1].task_id)


def redrive(
    tx: Transaction,
    *,
    task_ids: Sequence[str] = (),
    which: DeadLetterFilter | None = None,
    everything: bool = False,
    limit: int = 0,
) -> MovedTasks:
    """Redrive dead letters: they are due now and start from the first attempt.

    They come after the tasks that are due already. With strict order they return to their old position in their
    shard and block the tasks behind it. A dropped task can be redriven by its id. The run of a command is reopened.
    """
    chosen, more = _select(tx, task_ids, which, everything, limit)
    for task in chosen:
        commands.reopen_run(tx, task)
    requeue(tx, chosen)
    return MovedTasks(len(chosen), frozenset(task.reaction_id for task in chosen), more)


def requeue(tx: Transaction, chosen: Sequence[Task]) -> None:
    """Make tasks due now, from the first attempt; one waits if another with its ordering key is open."""
    now = now_ms()
    held = _held_back(tx, chosen)
    for due, some in ((WAITS_MS, held), (now, [task.task_id for task in chosen if task.task_id not in held])):
        condition, ids = tx.is_any("task_id", list(some))
        tx.execute(
            f"UPDATE tape_tasks SET status = {PENDING}, attempts = 0, next_attempt_at_ms = ?, completed_at_ms = 0,"
            # A redriven task is not debounced again.
            f" redriven = redriven + 1, debounced = 0 WHERE {condition}",
            due,
            ids,
        )
    tx.notify(CHANNEL)


def _held_back(tx: Transaction, chosen: Sequence[Task]) -> set[str]:
    """The ids of those that wait: another task with the same ordering key is open, or comes before them."""
    keys: dict[str, set[str]] = {}
    for task in chosen:
        if task.ordering_key:
            keys.setdefault(task.reaction_id, set()).add(task.ordering_key)
    busy = {(reaction_id, key) for reaction_id, some in keys.items() for key in find_open_keys(tx, reaction_id, some)}
    held = set()
    for task in sorted(chosen, key=lambda task: (task.source_global_seq, task.shard)):
        lane = (task.reaction_id, task.ordering_key)
        if task.ordering_key and lane in busy:
            held.add(task.task_id)
        busy.add(lane)
    return held


def drop(
    tx: Transaction,
    *,
    task_ids: Sequence[str] = (),
    which: DeadLetterFilter | None = None,
    everything: bool = False,
    limit: int = 0,
    reason: str = "",
) -> MovedTasks:
    """Drop dead letters: they become FAILED with the reason, and are purged like completed tasks."""
    chosen, more = _select(tx, task_ids, which, everything, limit)
    note = f"dropped: {reason}" if reason else "dropped"
    for task in chosen:
        error = f"{note[:500]}; before that: {task.last_error}" if task.last_error else note[:500]
        tx.execute(
            f"UPDATE tape_tasks SET status = {FAILED}, last_error = ?, completed_at_ms = ? WHERE task_id = ?",
            error.replace("\0", ""),
            now_ms(),
            task.task_id,
        )
    return MovedTasks(len(chosen), frozenset(task.reaction_id for task in chosen), more)


def purge_settled(tx: Transaction, before_ms: int, limit: int = 5_000) -> int:
    """Delete tasks that were completed or dropped before a time; how many, at most `limit`."""
    return tx.execute(
        "DELETE FROM tape_tasks WHERE task_id IN (SELECT task_id FROM tape_tasks"
        f" WHERE status IN ({DONE}, {FAILED}) AND completed_at_ms < ? ORDER BY completed_at_ms LIMIT ?)",
        before_ms,
        limit,
    )


def _select(
    tx: Transaction, task_ids: Sequence[str], which: DeadLetterFilter | None, everything: bool, limit: int
) -> tuple[list[Task], bool]:
    which = which or DeadLetterFilter()
    if sum((bool(task_ids), not which.is_empty, everything)) != 1:
        raise InvalidInput("Say which dead letters: task_ids, or a filter with at least one condition, or everything.")
    if not 0 <= limit <= MAX_LIMIT:
        raise InvalidInput(f"limit {limit} must lie between 0 and {MAX_LIMIT}; 0 means {DEFAULT_BULK}.")
    if task_ids:
        return [_get_dead_letter(tx, task_id) for task_id in dict.fromkeys(task_ids)], False
    limit = limit or DEFAULT_BULK
    pattern = Pattern(which.subject_pattern)
    found: list[Task] = []
    position: tuple[int, str] = (0, "")
    while True:
        page = _read_page(tx, which.reaction_id, position)
        for task in tasks.granted(page):
            if which.matches(task, pattern):
                if len(found) == limit:
                    return found, True
                found.append(task)
        if len(page) < PAGE:
            return found, False
        position = (page[-1].source_global_seq, page[-1].task_id)


def _read_page(tx: Transaction, reaction_id: str, position: tuple[int, str]) -> list[Task]:
    condition, params = ("reaction_id = ? AND ", [reaction_id]) if reaction_id else ("", [])
    visible, tenant = tasks.visible_condition()
    arguments: list[Any] = [*params, *position, *tenant, PAGE]
    return load_all(
        Task,
        tx.query(
            f"SELECT {COLUMNS} FROM tape_tasks WHERE {condition}status = {DLQ}"
            f" AND (source_global_seq, task_id) > (?, ?){visible}"
            " ORDER BY source_global_seq, task_id LIMIT ?",
            *arguments,
        ),
    )


def _get_dead_letter(tx: Transaction, task_id: str) -> Task:
    task = tasks.get(tx, task_id)
    if task.status not in (DLQ, FAILED):
        raise IllegalTransition(f"The task {task_id!r} is {task.status.name}, not a dead letter (DLQ or FAILED).")
    return task
