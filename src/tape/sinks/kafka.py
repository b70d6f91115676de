"""Entries as records of a Kafka topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tape.brokers.kafka.publisher import KafkaPublisher
from tape.errors import InvalidInput
from tape.model.message import BodyFormat
from tape.sinks.broker import BrokerSink


class KafkaSink(BrokerSink):
    """Produces records with the key `run_id`, so that a run keeps its order in its partition.

    The headers are `tape-event-id`, `kind`, `tape-subject` and, if the entry has a trace, `traceparent`. The producer
    is idempotent and waits for all replicas in sync. `timeout_s` (30 s) limits the delivery of a record; `config` goes
    to librdkafka (security, compression, …). Needs `pip install 'tape[kafka]'`.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        *,
        timeout_s: float = 30.0,
        config: Mapping[str, Any] | None = None,
        body: BodyFormat = "standard",
    ) -> None:
        if not servers or not topic:
            raise InvalidInput(f"servers {servers!r} and topic {topic!r} must both be given.")
        super().__init__(KafkaPublisher(servers, timeout_s=timeout_s, config=config), lambda _: topic, body)
