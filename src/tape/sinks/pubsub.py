"""Entries as messages on a Google Cloud Pub/Sub topic."""

from __future__ import annotations

from typing import Any

from tape.brokers.pubsub.publisher import PubSubPublisher, new_client, topic_path
from tape.errors import InvalidInput
from tape.model.message import BodyFormat
from tape.sinks.broker import BrokerSink


class PubSubSink(BrokerSink):
    """Publishes with `ordering_key = run_id`.

    The attributes are `tape-event-id`, `kind`, `tape-subject` and, if the entry has a trace, `traceparent`.
    Subscriptions need message ordering enabled to see a run in order. `timeout_s` (60 s) limits each message.
    `PUBSUB_EMULATOR_HOST` is honoured. `publisher` may be a PublisherClient with message ordering. Needs
    `pip install 'tape[pubsub]'`.
    """

    def __init__(
        self,
        project: str,
        topic: str,
        *,
        timeout_s: float = 60.0,
        publisher: Any = None,
        body: BodyFormat = "standard",
    ) -> None:
        for name, value in (("project", project), ("topic", topic)):
            if not value or "/" in value:
                raise InvalidInput(f"{name} {value!r} must be the bare name, such as 'tape-events'.")
        path = topic_path(project, topic)
        client = publisher or new_client()
        super().__init__(PubSubPublisher(timeout_s=timeout_s, client=client), lambda _: path, body)
