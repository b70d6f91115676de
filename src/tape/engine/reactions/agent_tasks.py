"""Agents that wait: with a debounce or a rate, a match is a task first, which the server turns into a run."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tape.base.clock import now_ms
from tape.engine.reactions import agent_runs, claims, tasks
from tape.engine.reactions.agent_runs import Source
from tape.engine.reactions.reaction import Reaction
from tape.engine.reactions.tasks import Report
from tape.model.reaction_states import HandlerKind
from tape.store import Transaction

AT_ONCE = 100
LEASE_MS = 60_000


class Launched(msgspec.Struct, frozen=True):
    """How many runs were begun, and when to look again (0: when there is news)."""

    runs: int = 0
    again_at_ms: int = 0


def waits(reaction: Reaction) -> bool:
    """Whether matches of the reaction wait before they become runs."""
    return reaction.handler_kind == HandlerKind.AGENT and not reaction.begins_runs_at_once


def launch_due(tx: Transaction, reactions: Sequence[Reaction]) -> Launched:
    """Begin the runs that are due and allowed, and settle their tasks, in one step."""
    now = now_ms()
    begun = 0
    times = []
    for reaction in reactions:
        terms = claims.Terms(agent_runs.OWNER, now + LEASE_MS, now)
        claimed = claims.take(tx, reaction, AT_ONCE, terms, AT_ONCE)
        sources = [
            Source(
                task.source_global_seq,
                task.source_run_id,
                task.subject,
                task.payload_json,
                task.trace_id,
                task.parent_span_id,
            )
            for task in claimed.tasks
        ]
        if sources:
            begun += agent_runs.launch(tx, reaction, sources)
            done = Report(completed=[task.task_id for task in claimed.tasks])
            tasks.settle(tx, agent_runs.OWNER, done, now)
        times.append(now if len(sources) == AT_ONCE else claimed.again_at_ms)
    return Launched(begun, min((time for time in times if time), default=0))
