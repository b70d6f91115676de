"""Commands: tasks of a worker pool, each of which has a run. A dead-lettered command fails its run.

A worker reports the end of a run that is kept as a summary by completing its task.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from tape.base.telemetry.tracing import Trace
from tape.engine.ledgers import runs, summary_runs
from tape.engine.ledgers.run_record import COLUMNS, Run
from tape.engine.ledgers.summary_runs import EndedRun
from tape.model.ledger_states import RunStatus
from tape.model.reaction_states import POOL
from tape.store import Transaction
from tape.store.records import load_all

if TYPE_CHECKING:
    from tape.engine.reactions.tasks import Task


def end_runs(tx: Transaction, tasks: Sequence[Task], now: int) -> list[str]:
    """End the runs of completed tasks whose command is shared; the ids of those tasks that nothing needs any more.

    A run that has a row, because it failed or had to wait, keeps its row and its task.
    """
    from tape.engine.reactions import batches  # which fails the runs of dead letters, as this module does

    condition, ids = tx.is_any("run_id", [task.source_run_id for task in tasks])
    rows = {
        run.run_id: run for run in load_all(Run, tx.query(f"SELECT {COLUMNS} FROM tape_runs WHERE {condition}", ids))
    }
    ended, gone = [], []
    for task in tasks:
        run = rows.get(task.source_run_id)
        if run is None:
            gone.append(task.task_id)
            ended.append(EndedRun(task.source_run_id, task.tenant, task.reaction_id.removeprefix(POOL)))
            continue
        if run.status not in runs.ENDED:
            run = runs.end(tx, run.run_id, RunStatus.TERMINAL, trace=_trace(task))
        if task.batch > 1:
            batches.split(tx, task, run, now)
    summary_runs.end_runs(tx, ended)
    return gone


def find_ended(tx: Transaction, tasks: Sequence[Task]) -> list[Task]:
    """Those of the tasks with a shared command whose run has ended already: it was cancelled, or its worker died."""
    shared = [task for task in tasks if task.is_shared]
    if not shared:
        return []
    condition, ids = tx.is_any("run_id", [task.source_run_id for task in shared])
    statuses = ", ".join(str(int(status)) for status in runs.ENDED)
    sql = f"SELECT run_id FROM tape_runs WHERE {condition} AND status IN ({statuses})"
    ended = {row[0] for row in tx.query(sql, ids)}
    return [task for task in shared if task.source_run_id in ended]


def fail_run(tx: Transaction, task: Task) -> None:
    """Fail the run of a dead-lettered command. A run that waits at a gate stays: its signal may still come."""
    run = _run_of(tx, task)
    if run is not None and run.status in (RunStatus.RUNNABLE, RunStatus.RUNNING):
        error = {
            "type": "DeadLetter",
            "message": f"the command is a dead letter after {task.attempts} attempts: {task.last_error}",
            "task_id": task.task_id,
        }
        detail_json = msgspec.json.encode({"error": error}).decode()
        runs.end(
            tx, run.run_id, RunStatus.FAILED, detail_json=detail_json, dead_task_id=task.task_id, trace=_trace(task)
        )


def park_run(tx: Transaction, task: Task, waiting_on: str) -> None:
    """Let the run of a command wait for a downstream. The next worker that leases the run resumes it."""
    run = _run_of(tx, task)
    if run is not None and run.status in (RunStatus.RUNNABLE, RunStatus.RUNNING):
        runs.park(tx, run, waiting_on, task.last_error, trace=_trace(task))


def reopen_run(tx: Transaction, task: Task) -> None:
    """Reopen a run that failed with its command. Raises IllegalTransition if the run is being compensated."""
    run = _run_of(tx, task)
    if run is not None and run.status == RunStatus.FAILED and run.dead_task_id:
        runs.reopen(tx, run, trace=_trace(task))


def _run_of(tx: Transaction, task: Task) -> Run | None:
    """The run of a command task; None for tasks of other reactions on the same entries, and of another tenant."""
    is_command = task.reaction_id.startswith(POOL) and task.subject.startswith("/tape/command/issued/")
    run = runs.find(tx, task.source_run_id) if is_command else None
    if run is None or task.tenant not in ("", run.tenant):
        return None
    return summary_runs.expand(tx, run, "") if summary_runs.is_summary(run) else run


def _trace(task: Task) -> Trace:
    return Trace(task.trace_id, task.parent_span_id)
