"""Batches of `tape subscribe`: plans that run together, and what becomes of each message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tape.model.shared_command import batch_message
from tape.subscriptions.routing import Plan


def group_plans(plans: Sequence[Plan]) -> list[list[int]]:
    """The numbers of plans in groups that are one run each, in the order of their first plan.

    A plan that is not to be batched is a group of its own.
    """
    groups: list[list[int]] = []
    open_groups: dict[tuple[str, ...], list[int]] = {}
    for index, plan in enumerate(plans):
        key = (plan.playbook, plan.pool, plan.priority, plan.downstream, plan.run_order)
        group = open_groups.get(key)
        if group is None or not plan.batch or len(group) >= plan.batch:
            group = []
            groups.append(group)
            if plan.batch:
                open_groups[key] = group
        group.append(index)
    return groups


def batch_plan(plans: Sequence[Plan]) -> Plan:
    """The plan of the run of a batch."""
    first = plans[0]
    payload: dict[str, Any] = {
        "messages": [batch_message(plan.payload) for plan in plans],
        "subscription": first.payload["subscription"],
        "source": first.payload["source"],
    }
    if len(plans) == 1:
        return msgspec.structs.replace(first, payload=payload)
    return msgspec.structs.replace(first, payload=payload, message_id="", trace=None, dedup=None, applied=())
