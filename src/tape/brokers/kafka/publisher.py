"""Publishes to Kafka with an idempotent producer."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

from tape.brokers.publisher import Publisher
from tape.errors import InvalidConfig, MissingExtra, PublishFailed, PublishRejected
from tape.model.message import Message

POLL_S = 0.1
CLOSE_TIMEOUT_S = 5.0
# Names of KafkaError: errors that a retry cannot mend.
_PERMANENT = (
    "MSG_SIZE_TOO_LARGE",
    "INVALID_MSG",
    "TOPIC_EXCEPTION",
    "UNKNOWN_TOPIC_OR_PART",
    "_UNKNOWN_TOPIC",
    "TOPIC_AUTHORIZATION_FAILED",
    "INVALID_RECORD",
)


class KafkaPublisher(Publisher):
    """Publishes with the run as the key, so that the messages of a run share a partition and keep their order.

    A message is stored when all replicas in sync have it. `config` has more properties of librdkafka (security,
    compression, …). librdkafka connects and reconnects on its own; a message fails after `timeout_s`.
    """

    def __init__(self, servers: str, *, timeout_s: float = 30.0, config: Mapping[str, Any] | None = None) -> None:
        try:
            kafka = importlib.import_module("confluent_kafka")
        except ImportError as error:
            raise MissingExtra("publishing to Kafka", "kafka") from error
        self._kafka_exception = kafka.KafkaException
        self._permanent = {getattr(kafka.KafkaError, name) for name in _PERMANENT}
        settings = {
            "bootstrap.servers": servers,
            "linger.ms": 1,
            "message.timeout.ms": int(timeout_s * 1_000),
            **(config or {}),
            "enable.idempotence": True,
        }
        try:
            self._producer = kafka.Producer(settings)
        except kafka.KafkaException as error:
            raise InvalidConfig(f"Kafka rejects its settings: {error}") from error
        # Reports of one poll are passed to the event loop together: waking it for each would cost most of the time.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reports: deque[tuple[asyncio.Future[None], Exception | None]] = deque()
        self._is_closed = threading.Event()
        self._poller = threading.Thread(target=self._poll, name="tape-kafka", daemon=True)
        self._poller.start()

    async def publish(self, topic: str, message: Message) -> None:
        await self.start(topic, message)

    def start(self, topic: str, message: Message) -> asyncio.Future[None]:
        self._loop = asyncio.get_running_loop()
        delivered: asyncio.Future[None] = self._loop.create_future()

        def report(error: Any, _: Any) -> None:
            self._reports.append((delivered, None if error is None else self._translate(error, topic)))

        headers = [(name, value.encode()) for name, value in message.headers.items()]
        try:
            self._producer.produce(
                topic, message.body, key=message.run_id.encode(), headers=headers, on_delivery=report
            )
        except (BufferError, self._kafka_exception) as error:
            delivered.set_exception(self._translate(error, topic))
        return delivered

    async def close(self) -> None:
        await asyncio.to_thread(self._producer.flush, CLOSE_TIMEOUT_S)
        self._is_closed.set()
        await asyncio.to_thread(self._poller.join)
        self._resolve_reports()

    def _poll(self) -> None:
        while not self._is_closed.is_set():
            self._producer.poll(POLL_S)
            if self._reports and self._loop is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: the reports have no receiver
                    self._loop.call_soon_threadsafe(self._resolve_reports)

    def _resolve_reports(self) -> None:
        while self._reports:
            delivered, error = self._reports.popleft()
            if delivered.done():
                continue
            if error is None:
                delivered.set_result(None)
            else:
                delivered.set_exception(error)

    def _translate(self, error: Any, topic: str) -> PublishFailed | PublishRejected:
        found = error.args[0] if isinstance(error, self._kafka_exception) else error
        code = found.code() if hasattr(found, "code") else None
        text = f"Kafka topic {topic}: {error}."
        return PublishRejected(text) if code in self._permanent else PublishFailed(text)
