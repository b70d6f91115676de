"""Entries as records of a Kafka topic."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from tape.errors import InvalidInput, MissingExtra, SinkHeldBack, SinkRejected, SinkUnavailable
from tape.sinks.sink import body_of, event_id_of

# What will not get better by trying again, by the names of KafkaError.
_PERMANENT = (
    "MSG_SIZE_TOO_LARGE",
    "INVALID_MSG",
    "TOPIC_EXCEPTION",
    "UNKNOWN_TOPIC_OR_PART",
    "_UNKNOWN_TOPIC",
    "TOPIC_AUTHORIZATION_FAILED",
    "INVALID_RECORD",
)


class KafkaSink:
    """Produces records with the key `run_id` and the headers `tape-event-id` and `kind`.

    The producer is idempotent and waits for all replicas, so a run keeps its order in its partition. `config` is
    passed to librdkafka (security, compression, …). Needs `pip install 'tape[kafka]'`.
    """

    def __init__(
        self, servers: str, topic: str, *, timeout_s: float = 30.0, config: Mapping[str, Any] | None = None
    ) -> None:
        if not servers or not topic:
            raise InvalidInput(f"servers {servers!r} and topic {topic!r} must both be given.")
        try:
            kafka = importlib.import_module("confluent_kafka")
        except ImportError as error:
            raise MissingExtra("KafkaSink", "kafka") from error
        self._topic = topic
        self._timeout = timeout_s
        self._permanent = {getattr(kafka.KafkaError, name) for name in _PERMANENT}
        self._kafka_error = kafka.KafkaException
        self._producer = kafka.Producer(
            {
                "bootstrap.servers": servers,
                "linger.ms": 0,
                "message.timeout.ms": int(timeout_s * 1_000),
                **(config or {}),
                "enable.idempotence": True,
            }
        )

    def publish(self, entry: Any) -> None:
        """Return when the topic has the entry."""
        (error,) = self.publish_batch([entry])
        if error is not None:
            raise error

    def publish_batch(self, entries: Sequence[Any]) -> list[Exception | None]:
        """Produce records together; librdkafka keeps those of a run in order."""
        outcomes: list[Exception | None] = [SinkUnavailable("No answer within the time.") for _ in entries]

        def delivered(position: int) -> Any:
            def told(error: Any, message: Any) -> None:
                outcomes[position] = self._outcome(error) if error is not None else None

            return told

        for position, entry in enumerate(entries):
            try:
                self._producer.produce(
                    self._topic,
                    key=entry.run_id.encode(),
                    value=body_of(entry),
                    headers=[("tape-event-id", event_id_of(entry).encode()), ("kind", entry.kind.encode())],
                    on_delivery=delivered(position),
                )
            except (BufferError, self._kafka_error) as error:
                outcomes[position] = self._outcome(error)
        if self._producer.flush(self._timeout + 1) > 0:
            self._producer.purge()  # nothing may leave later, behind the back of whoever tries again
            self._producer.flush(1)
        failed: dict[str, Any] = {}
        for position, entry in enumerate(entries):
            if outcomes[position] is None:
                continue
            if entry.run_id in failed:
                outcomes[position] = SinkHeldBack(entry, failed[entry.run_id])
            else:
                failed[entry.run_id] = entry
        return outcomes

    def close(self) -> None:
        """Let what is on its way arrive."""
        self._producer.flush(self._timeout)

    def _outcome(self, error: Any) -> Exception:
        code = error.args[0].code() if isinstance(error, self._kafka_error) else getattr(error, "code", lambda: None)()
        kind = SinkRejected if code in self._permanent else SinkUnavailable
        return kind(f"The Kafka topic {self._topic}: {error}.")
