"""Ordered dispatch: starts runs in the order that the subscription asks for, and records outcomes in circuits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from tape.base import structs
from tape.model.dispatch_result import RunDispatchResult
from tape.subscriptions.dispatch.circuit import Circuits
from tape.subscriptions.routing import DedupKey, Plan
from tape.subscriptions.spool.item import SpoolItem
from tape.subscriptions.spool.replay import LaneDispatch, in_turns
from tape.subscriptions.spool.spool import Lane, SpoolRules

# Replays without a dedup key are deduplicated by their spool reference for 7 days.
_REPLAY_WINDOW_S = 7 * 24 * 3600

Dispatch = Callable[[Sequence[Plan]], Awaitable[list[RunDispatchResult]]]


class OutcomeRecorder(Protocol):
    """Follows the outcomes of dispatches to a server, which learns later what became of the runs."""

    def is_answer(self, name: str) -> bool:
        """Whether an accepted dispatch counts as an answer of its downstream."""

    def await_probe(self, name: str) -> None:
        """A message was accepted."""

    def abandon_probe(self, name: str) -> None:
        """A message got no run of its own."""


class OrderedDispatch:
    """Dispatches live and replayed plans. Calls `recorded` with the downstream of each outcome.

    Without an `outcomes` recorder the dispatch carries its runs out itself, and its results name the downstreams that
    answered.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        circuits: Circuits,
        rules: SpoolRules | None,
        now_ms: Callable[[], int],
        recorded: Callable[[str], None],
        *,
        outcomes: OutcomeRecorder | None = None,
    ) -> None:
        self._dispatch = dispatch
        self._circuits = circuits
        self._rules = rules
        self._now_ms = now_ms
        self._recorded = recorded
        self._outcomes = outcomes

    async def send(self, plans: Sequence[Plan]) -> list[RunDispatchResult]:
        """Start the runs in order. A rejected plan does not block the plans after it."""
        rules = self._rules
        if rules is None or rules.ordering == "none" or len(plans) == 1:
            answers = await self._dispatch(plans)
            self._record_all(plans, answers)
            return answers
        lanes = [rules.lane(self._circuits.route(plan.pool or None), plan.ordering_key or None, "") for plan in plans]
        answers = [RunDispatchResult("skipped")] * len(plans)
        left = list(range(len(plans)))
        while left:
            sent = await self._in_lanes([plans[index] for index in left], [lanes[index] for index in left])
            for index, answer in zip(left, sent, strict=True):
                answers[index] = answer
            if lost := next((answer for answer in sent if answer.outcome in ("unavailable", "misconfigured")), None):
                return [self._fail_with(plan, lost, each) for plan, each in zip(plans, answers, strict=True)]
            skipped = [index for index, answer in zip(left, sent, strict=True) if answer.outcome == "skipped"]
            left = skipped if len(skipped) < len(left) else []
        return answers

    async def replay(self, items: list[SpoolItem], lanes: Sequence[Lane]) -> list[RunDispatchResult]:
        """Start the runs of spooled messages; after a failure the rest of its lane is skipped."""
        now_ms = self._now_ms()
        return await self._in_lanes([_replay_plan(item, now_ms) for item in items], lanes)

    async def _in_lanes(self, plans: Sequence[Plan], lanes: Sequence[Lane]) -> list[RunDispatchResult]:
        if isinstance(self._dispatch, LaneDispatch):
            answers = await self._dispatch.in_lanes(plans, lanes)
        else:
            answers = await in_turns(self._dispatch, plans, lanes)
        self._record_all(plans, answers)
        return answers

    def _fail_with(self, plan: Plan, lost: RunDispatchResult, answer: RunDispatchResult) -> RunDispatchResult:
        """A skipped message shares the outcome of the failed one before it, for the circuit too."""
        if answer.outcome != "skipped":
            return answer
        self._record(plan, lost)
        return lost

    def _record_all(self, plans: Sequence[Plan], answers: Sequence[RunDispatchResult]) -> None:
        for plan, answer in zip(plans, answers, strict=True):
            if answer.outcome != "skipped":
                self._record(plan, answer)

    def _record(self, plan: Plan, answer: RunDispatchResult) -> None:
        if answer.outcome == "misconfigured":
            return  # says nothing about a downstream
        downstream, now_ms = self._circuits.route(plan.pool or None), self._now_ms()
        self._recorded(downstream)
        if answer.outcome == "unavailable":
            name = answer.downstream or downstream
            self._circuits.add(name)
            self._circuits.record(name, succeeded=False, now_ms=now_ms)
        elif self._outcomes is None:
            self._record_answers(downstream, answer, now_ms)
        elif self._outcomes.is_answer(downstream):
            self._circuits.record(downstream, succeeded=True, now_ms=now_ms)
        elif answer.outcome == "started":
            # Whether the downstream of an accepted run answers is known when the run has ended.
            self._outcomes.await_probe(downstream)
        else:
            self._outcomes.abandon_probe(downstream)

    def _record_answers(self, downstream: str, answer: RunDispatchResult, now_ms: int) -> None:
        """A run that has ended names the downstreams that answered it; another one does not count."""
        names = (downstream,) if answer.answered is None else answer.answered
        for name in names:
            self._circuits.add(name)
            self._circuits.record(name, succeeded=True, now_ms=now_ms)
        if downstream not in names:
            self._circuits[downstream].abandon_probe(now_ms)


def _replay_plan(item: SpoolItem, now_ms: int) -> Plan:
    """The plan of a spooled message, with a dedup key: it can be dispatched already if its removal failed."""
    plan = structs.convert(item.plan, Plan)
    if plan.dedup is None:
        dedup = DedupKey(item.ref, _REPLAY_WINDOW_S)
    else:
        # The dedup window starts when the message is received, not when it is replayed.
        waited_s = max(0, now_ms - item.spooled_at_ms) // 1_000
        dedup = msgspec.structs.replace(plan.dedup, window_secs=plan.dedup.window_secs + waited_s)
    return msgspec.structs.replace(plan, dedup=dedup, payload={**plan.payload, "message": item.message})
