"""Commands: tasks of a worker pool, each of which has a run. A dead-lettered command fails its run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tape.base.telemetry.tracing import Trace
from tape.engine.ledgers import runs
from tape.model.ledger_states import RunStatus
from tape.model.reaction_states import POOL
from tape.store import Transaction

if TYPE_CHECKING:
    from tape.engine.reactions.tasks import Task


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


def _run_of(tx: Transaction, task: Task) -> runs.Run | None:
    """The run of a command task; None for tasks of other reactions on the same entries, and of another tenant."""
    is_command = task.reaction_id.startswith(POOL) and task.subject.startswith("/tape/command/issued/")
    run = runs.find(tx, task.source_run_id) if is_command else None
    return run if run is not None and task.tenant in ("", run.tenant) else None


def _trace(task: Task) -> Trace:
    return Trace(task.trace_id, task.parent_span_id)
