"""Retries of failed executions: a failed run begins again under its id, with the steps that are confirmed.

The command of the run becomes due again. Steps that failed are tried again; confirmed ones are not repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from tape.base.clock import now_ms
from tape.base.telemetry.tracing import NO_TRACE
from tape.engine.ledgers import effects, runs, summary_runs
from tape.engine.ledgers.effects import Effect
from tape.engine.ledgers.run_record import COLUMNS, PLAYBOOKS, Run
from tape.engine.reactions import dead_letters, tasks
from tape.engine.reactions.tasks import Task
from tape.errors import IllegalTransition, InvalidInput
from tape.model.ledger_states import DispatchMode, EffectStatus, RunStatus
from tape.model.principal import current_principal
from tape.model.reaction_states import POOL
from tape.model.tenant_names import plain_name
from tape.store import Transaction
from tape.store.records import columns, load_all

DEFAULT_LIMIT = 100
MAX_LIMIT = 1_000


class RetryFilter(NamedTuple):
    """Failed runs of a subscription that ended since a time."""

    subscription: str = ""
    ended_after_ms: int = 0


NO_FILTER = RetryFilter()
_RETRIED = (RunStatus.FAILED,)
_RESUMED = (RunStatus.CANCELLED, RunStatus.STUCK)


class RunRetry(NamedTuple):
    """A run, and why it is not begun again; empty if it is."""

    run_id: str
    message_id: str = ""
    error: str = ""
    refusal: str = ""


class RunRetries(NamedTuple):
    """The runs that were chosen, and whether more match the filter."""

    runs: list[RunRetry]
    more: bool
    reaction_ids: frozenset[str] = frozenset()


def retry_runs(
    tx: Transaction,
    *,
    run_ids: Sequence[str] = (),
    which: RetryFilter = NO_FILTER,
    limit: int = 0,
    is_dry_run: bool = False,
    is_resume: bool = False,
) -> RunRetries:
    """Begin failed runs again: those with these ids, or those of a filter, the oldest first.

    With `is_resume`, runs that are CANCELLED or STUCK go on, and effects that failed stay failed.
    """
    if is_resume and not run_ids:
        raise InvalidInput("resume needs run_ids: it is for runs that are named.")
    if bool(run_ids) == bool(which.subscription):
        raise InvalidInput("Say which runs: run_ids, or the subscription whose failed runs begin again.")
    if not 0 <= limit <= MAX_LIMIT:
        raise InvalidInput(f"limit {limit} must lie between 0 and {MAX_LIMIT}; 0 means {DEFAULT_LIMIT}.")
    if len(run_ids) > MAX_LIMIT:
        raise InvalidInput(f"run_ids has {len(run_ids)} elements; send {MAX_LIMIT} at most.")
    limit = limit or DEFAULT_LIMIT
    if run_ids:
        found = [(run_id, runs.find(tx, run_id)) for run_id in dict.fromkeys(run_ids)]
        more = False
    else:
        failed = _find_failed(tx, which, limit + 1)
        found, more = [(run.run_id, run) for run in failed[:limit]], len(failed) > limit
    retries, reaction_ids = [], set()
    for run_id, run in found:
        if run is None:
            retries.append(RunRetry(run_id, refusal="there is no such execution"))
            continue
        task = _find_command(tx, run) if run.app_name == PLAYBOOKS else None
        refusal = _refusal(run, task, _RESUMED if is_resume else _RETRIED)
        if not refusal and not is_dry_run:
            try:
                _begin_again(tx, run, task, keeps_failures=is_resume)
                if task is not None:
                    reaction_ids.add(task.reaction_id)
            except IllegalTransition as error:
                refusal = str(error)
        labels = run.labels
        retries.append(RunRetry(run_id, labels.get("tape.message_id", ""), _error_of(run), refusal))
    return RunRetries(retries, more, frozenset(reaction_ids))


def _find_failed(tx: Transaction, which: RetryFilter, limit: int) -> list[Run]:
    tenant = current_principal().only_tenant
    visible, values = ("", []) if tenant is None else (" AND tenant = ?", [tenant])
    rows = tx.query(
        f"SELECT {COLUMNS} FROM tape_runs WHERE app_name = ? AND user_id = '' AND session_id = ?"
        f" AND status = {RunStatus.FAILED} AND ended_at_ms >= ?{visible} ORDER BY started_at_ms, run_id LIMIT ?",
        PLAYBOOKS,
        plain_name(which.subscription),
        which.ended_after_ms,
        *values,
        limit,
    )
    return load_all(Run, rows)


def _refusal(run: Run, task: Task | None, allowed: Sequence[RunStatus]) -> str:
    if run.status not in allowed:
        return f"it is {run.status.name}, not {' or '.join(status.name for status in allowed)}"
    if run.app_name != PLAYBOOKS:
        return ""
    if task is None:
        return "its command is no longer kept; start it again with `tape execute`"
    if task.status not in (tasks.DONE, tasks.DLQ, tasks.FAILED):
        return f"its command is {task.status.name}"
    return ""


def _find_command(tx: Transaction, run: Run) -> Task | None:
    """The task of the command that began a run; None if it was purged."""
    if run.dead_task_id:
        return tasks.find(tx, run.dead_task_id)
    begun = summary_runs.find_begin(tx, run.run_id)
    if begun is not None:
        global_seq = begun[0].global_seq
    else:
        row = tx.one(
            "SELECT global_seq FROM tape_journal WHERE run_id = ? AND tenant = ? AND kind = 'command'"
            " ORDER BY seq LIMIT 1",
            run.run_id,
            run.tenant,
        )
        if row is None:
            return None
        global_seq = row[0]
    row = tx.one(
        "SELECT task_id FROM tape_tasks WHERE reaction_id = ? AND source_global_seq = ? AND source_run_id = ?",
        f"{POOL}{run.labels.get('tape.pool', '')}",
        global_seq,
        run.run_id,
    )
    return None if row is None else tasks.find(tx, row[0])


def _begin_again(tx: Transaction, run: Run, task: Task | None, *, keeps_failures: bool) -> None:
    runs.reopen(tx, run)
    if not keeps_failures:
        _retry_effects(tx, run)
    if task is not None:
        dead_letters.requeue(tx, [task])


def _retry_effects(tx: Transaction, run: Run) -> None:
    rows = tx.query(
        f"SELECT {columns(Effect)} FROM tape_effects WHERE run_id = ? AND status = {EffectStatus.FAILED} ORDER BY seq",
        run.run_id,
    )
    for effect in load_all(Effect, rows):
        runs.journal(tx, runs.get(tx, run.run_id), *effects.describe_begin(effect), NO_TRACE)
    tx.execute(
        f"UPDATE tape_effects SET status = {EffectStatus.PENDING}, error_json = '', next_dispatch_at_ms = CASE"
        f" WHEN dispatch_mode = {DispatchMode.OUTBOX} THEN ? ELSE next_dispatch_at_ms END"
        f" WHERE run_id = ? AND status = {EffectStatus.FAILED}",
        now_ms(),
        run.run_id,
    )


def _error_of(run: Run) -> str:
    detail = msgspec.json.decode(run.detail_json) if run.detail_json else {}
    error = detail.get("error") if isinstance(detail, dict) else None
    return str(error.get("message", "")) if isinstance(error, dict) else ""
