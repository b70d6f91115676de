"""The pools that runs of a subscription can be on."""

from __future__ import annotations

from tape.playbooks.pools import default_pool
from tape.subscriptions.document.spec import Subscription


def pools_of(subscription: Subscription) -> tuple[str, ...]:
    """Every pool that the document can choose: its own, and those that the values of headers may select."""
    spec = subscription.spec
    playbooks = [spec.dispatch.playbook]
    chosen: list[str] = []
    for rule in spec.headers.directives:
        match rule.controls:
            case "dispatch.execution_pool":
                chosen += rule.allowed
            case "priority":
                chosen += rule.map.values()
            case "dispatch.playbook":
                playbooks += rule.allowed
            case _:
                pass
    own = [spec.dispatch.execution_pool] if spec.dispatch.execution_pool else map(default_pool, playbooks)
    return tuple(dict.fromkeys((*own, *chosen)))
