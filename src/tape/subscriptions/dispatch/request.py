"""The execute request of a plan, the same for in-process and HTTP dispatch."""

from __future__ import annotations

from typing import Any

import msgspec

from tape.subscriptions import events
from tape.subscriptions.events import SubscriptionRef
from tape.subscriptions.routing import Plan


def request_of(ref: SubscriptionRef, plan: Plan, emitter: str, worker_id: str = "") -> dict[str, Any]:
    """The body of `POST /api/execute` for a plan. An event about applied headers goes to the journal of the new run."""
    request: dict[str, Any] = {
        "path": plan.playbook,
        "payload": plan.payload,
        "subscription": plan.subscription,
        "message_id": plan.message_id,
    }
    if ref.subscription_id:
        request["parent_execution_id"] = ref.subscription_id
    if plan.pool:
        request["execution_pool"] = plan.pool
    if plan.priority:
        request["priority"] = plan.priority
    if plan.run_order:
        request["ordering_key"] = plan.run_order
    if plan.downstream:
        request["downstream"] = plan.downstream
    if plan.record != "full":
        request["record"] = plan.record
    if plan.batch:
        request["batch"] = plan.batch
    if plan.trace is not None:
        request["trace"] = msgspec.to_builtins(plan.trace)
    if plan.dedup is not None:
        request["dedup"] = {"key": plan.dedup.key, "window_secs": plan.dedup.window_secs}
    if plan.changed_something:
        draft = events.stamped(events.directives_applied(ref, plan, 0, emitter=emitter), worker_id).draft()
        request["events"] = [{"subject": draft.subject, "payload": msgspec.json.decode(draft.payload_json)}]
    return request
