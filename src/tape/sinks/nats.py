"""Entries as messages of NATS JetStream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tape.brokers.nats.publisher import NatsPublisher
from tape.errors import InvalidInput
from tape.model.message import BodyFormat
from tape.sinks.broker import BrokerSink


class NatsSink(BrokerSink):
    """Publishes with `Nats-Msg-Id: <run_id>/<seq>`, on which a stream drops duplicates.

    The headers are `tape-event-id`, `kind`, `tape-subject` and, if the entry has a trace, `traceparent`. The subject is
    that of the entry with dots, `/tape/order/paid/42` as `tape.order.paid.42`, unless `subject` is given; a stream must
    store it. With `jetstream=False`, messages go to the subscribers of the moment and are not stored. `timeout_s` (5 s)
    limits connecting and each acknowledgement; `options` go to `nats.connect`. Needs `pip install 'tape[nats]'`.
    """

    def __init__(
        self,
        servers: str | Sequence[str] = "nats://127.0.0.1:4222",
        subject: str = "",
        *,
        jetstream: bool = True,
        timeout_s: float = 5.0,
        options: dict[str, Any] | None = None,
        body: BodyFormat = "standard",
    ) -> None:
        if timeout_s <= 0:
            raise InvalidInput(f"timeout_s {timeout_s!r} must be more than 0.")
        publisher = NatsPublisher(
            servers,
            jetstream=jetstream,
            timeout_s=timeout_s,
            options={"connect_timeout": timeout_s, **(options or {})},
        )
        super().__init__(publisher, (lambda _: subject) if subject else subject_of, body)


def subject_of(entry: Any) -> str:
    """The subject of an entry as NATS spells it: segments become tokens, and a dot within one becomes %2E."""
    return ".".join(segment.replace(".", "%2E") for segment in entry.subject.strip("/").split("/"))
