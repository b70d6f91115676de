"""From what a source hands over to the envelope that everything behind it reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tape.brokers.source import Delivery
from tape.subscriptions.message import SourceMessage, receive


def message_of(source: str, delivery: Delivery, *, shows_receipt: bool = False) -> SourceMessage:
    """The message of a delivery. With `shows_receipt` a playbook sees its receipt as `ack_id`."""
    return receive(
        source,
        delivery.message_id,
        delivery.body,
        delivery.headers,
        attributes=_as_sent(delivery.headers),
        metadata=dict(delivery.metadata),
        ordering_key=delivery.ordering_key,
        deliveries=delivery.deliveries,
        ack_id=delivery.receipt if shows_receipt else "",
    )


def _as_sent(headers: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Headers by their name as the source spells it: one value as text, several as a list."""
    found: dict[str, Any] = {}
    for name, value in headers:
        if name not in found:
            found[name] = value
        elif isinstance(found[name], list):
            found[name].append(value)
        else:
            found[name] = [found[name], value]
    return found
