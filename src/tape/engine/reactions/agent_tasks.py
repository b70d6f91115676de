"""Delayed agent runs: with a debounce or a rate limit, a match is a task first, which the server turns into a run."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tape.base.clock import now_ms
from tape.engine.reactions import agent_runs, claims, tasks
from tape.engine.reactions.agent_runs import RunSource
from tape.engine.reactions.reaction import Reaction
from tape.engine.reactions.tasks import TaskReport
from tape.model.reaction_states import HandlerKind
from tape.store import Transaction

MAX_PER_STEP = 100
LEASE_MS = 60_000


class LaunchResult(msgspec.Struct, frozen=True):
    """How many runs were begun, and the milliseconds until the next task is due (None: unknown)."""

    runs: int = 0
    wait_ms: int | None = None


def has_delayed_runs(reaction: Reaction) -> bool:
    """Whether matches of the reaction become tasks before they become runs."""
    return reaction.handler_kind == HandlerKind.AGENT and not reaction.begins_runs_immediately


def launch_due(tx: Transaction, reactions: Sequence[Reaction]) -> LaunchResult:
    """Begin the runs whose tasks are due and within the rate limit, and complete those tasks."""
    now = now_ms()
    begun = 0
    times = []
    for reaction in reactions:
        last_due = claims.read_last_due(tx, reaction.reaction_id)
        terms = claims.ClaimTerms(agent_runs.OWNER, now + LEASE_MS, now, last_due=last_due)
        claimed = claims.claim_up_to(tx, reaction, MAX_PER_STEP, terms, MAX_PER_STEP)
        sources = [
            RunSource(
                task.source_global_seq,
                task.source_run_id,
                task.subject,
                task.payload_json,
                task.trace_id,
                task.parent_span_id,
                task.tenant,
            )
            for task in claimed.tasks
        ]
        if sources:
            begun += agent_runs.launch_runs(tx, reaction, sources)
            done = TaskReport(completed=[task.task_id for task in claimed.tasks])
            tasks.settle_tasks(tx, agent_runs.OWNER, done, now)
        times.append(now if len(sources) == MAX_PER_STEP else claimed.next_check_at_ms)
    return LaunchResult(begun, min((max(time - now, 0) for time in times if time), default=None))
