"""Subscriptions for tests, made from what a test cares about."""

from __future__ import annotations

from typing import Any

import msgspec

from tape.subscriptions.document.spec import Subscription, SubscriptionSpec


def subscription(path: str = "subscriptions/orders", **spec: Any) -> Subscription:
    """A subscription to a NATS stream; keywords are blocks of its spec as they would stand in YAML."""
    base = {
        "source": "nats",
        "mode": "pull",
        "url": "nats://127.0.0.1:4222",
        "stream": "ORDERS",
        "consumer": "orders",
        "dispatch": {"playbook": "domain/ingest_order"},
    }
    converted = msgspec.convert(base | spec, SubscriptionSpec)
    return Subscription(path=path, name=path.rpartition("/")[2], spec=converted)
