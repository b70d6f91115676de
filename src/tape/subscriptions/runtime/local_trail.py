"""The local trail: a JSONL file with the events that a server would write to its journal."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import IO

import msgspec

from tape.errors import InvalidInput
from tape.model.dispatch_result import RunDispatchResult
from tape.subscriptions import events
from tape.subscriptions.dispatch.http import ServerDispatch
from tape.subscriptions.events import SubscriptionEvent, SubscriptionRef, stamped
from tape.subscriptions.routing import Plan

WORKER = "cli-local"


class Trail:
    """Writes events to a file, which is truncated first, and flushes each. `seen` counts them by type."""

    def __init__(self, path: Path, shown: Callable[[SubscriptionEvent], None] = lambda event: None) -> None:
        self.path = path
        self.seen: Counter[str] = Counter()
        self._shown = shown
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = path.open("wb")
        except OSError as error:
            raise InvalidInput(f"the events cannot be written to {path}: {error.strerror}.") from error

    async def write(self, events: Sequence[SubscriptionEvent]) -> None:
        """Append events and flush them."""
        named = [stamped(event, WORKER) for event in events]
        await asyncio.to_thread(self._append, b"".join(msgspec.json.encode(event.record()) + b"\n" for event in named))
        for event in named:
            self.seen[event.event_type] += 1
            self._shown(event)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _append(self, lines: bytes) -> None:
        self._file.write(lines)
        self._file.flush()


def started_events(ref: SubscriptionRef, plan: Plan, execution_id: int) -> list[SubscriptionEvent]:
    """The events of a run that was started, here or on a server."""
    context = {
        "subscription": ref.path,
        "parent_execution_id": ref.subscription_id,
        "message_id": plan.message_id,
        "playbook": plan.playbook,
        "pool": plan.pool or None,
    }
    to_emit = [events.local(ref, "playbook.started", "STARTED", execution_id, context, plan.trace)]
    if plan.changed_something:
        to_emit.append(events.directives_applied(ref, plan, execution_id, emitter="subscribe_runtime"))
    return to_emit


class TrailDispatch:
    """Dispatches to a server and writes the started runs to the trail; their ends are in the server's journal."""

    def __init__(self, dispatch: ServerDispatch, ref: SubscriptionRef, trail: Trail) -> None:
        self._dispatch = dispatch
        self._ref = ref
        self._trail = trail

    async def __call__(self, plans: Sequence[Plan]) -> list[RunDispatchResult]:
        """Dispatch the plans; one result per plan."""
        return await self._emit(plans, await self._dispatch(plans))

    async def in_lanes(self, plans: Sequence[Plan], lanes: Sequence[Hashable]) -> list[RunDispatchResult]:
        """Dispatch the plans, each lane in order."""
        return await self._emit(plans, await self._dispatch.in_lanes(plans, lanes))

    async def _emit(self, plans: Sequence[Plan], answers: list[RunDispatchResult]) -> list[RunDispatchResult]:
        to_emit: list[SubscriptionEvent] = []
        for plan, answer in zip(plans, answers, strict=True):
            if answer.outcome == "started":
                to_emit += started_events(self._ref, plan, answer.execution_id)
            elif answer.outcome == "duplicate" and plan.dedup is not None:
                to_emit.append(events.deduplicated(self._ref, plan.dedup.key, answer.execution_id))
        if to_emit:
            await self._trail.write(to_emit)
        return answers
