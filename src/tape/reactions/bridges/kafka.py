"""Kafka: an idempotent producer; a message counts when all replicas in sync have it."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from typing import Any

from tape.errors import InvalidConfig, MissingExtra, PublishFailed
from tape.reactions.bridges.broker import Broker
from tape.reactions.bridges.message import Message
from tape.reactions.bridges.target import Target

DELIVERY_MS = 30_000
POLL_S = 0.1


class Kafka(Broker):
    """One producer. `TAPE_KAFKA_CONFIG` may hold more of librdkafka's settings, as a JSON object."""

    def __init__(self, broker: str) -> None:
        try:
            import confluent_kafka
        except ImportError as error:
            raise MissingExtra("publishing to Kafka", "kafka") from error
        self._errors = (confluent_kafka.KafkaException, BufferError)
        self._loop = asyncio.get_running_loop()
        settings = {
            "bootstrap.servers": broker,
            "client.id": "tape-bridge",
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 1,
            "delivery.timeout.ms": DELIVERY_MS,
            **_settings(),
        }
        try:
            self._producer = confluent_kafka.Producer(settings)
        except confluent_kafka.KafkaException as error:
            raise InvalidConfig(f"Kafka refuses its settings: {error}") from error
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="tape-kafka", daemon=True)
        self._thread.start()

    async def publish(self, target: Target, message: Message) -> None:
        """Publish with the run as the key, so that a run's messages share a partition and keep their order."""
        delivered: asyncio.Future[None] = self._loop.create_future()

        def tell(error: Any, _: Any) -> None:
            self._loop.call_soon_threadsafe(_resolve, delivered, error, target)

        headers: list[tuple[str, str | bytes | None]] = [
            (name, value.encode()) for name, value in message.headers.items()
        ]
        try:
            self._producer.produce(
                target.name, message.body, key=message.run_id.encode(), headers=headers, on_delivery=tell
            )
        except self._errors as error:
            raise PublishFailed(f"{target}: {error}") from error
        await delivered

    async def close(self) -> None:
        """Wait for what is on its way, then disconnect."""
        await asyncio.to_thread(self._producer.flush, 5.0)
        self._is_closed.set()
        await asyncio.to_thread(self._thread.join)

    def _poll(self) -> None:
        while not self._is_closed.is_set():
            self._producer.poll(POLL_S)


def _resolve(delivered: asyncio.Future[None], error: Any, target: Target) -> None:
    if delivered.done():
        return
    if error is not None:
        delivered.set_exception(PublishFailed(f"{target}: {error.str()}"))
    else:
        delivered.set_result(None)


def _settings() -> dict[str, Any]:
    text = os.environ.get("TAPE_KAFKA_CONFIG", "")
    try:
        found = json.loads(text) if text else {}
    except ValueError as error:
        raise InvalidConfig(f"TAPE_KAFKA_CONFIG is not JSON: {error}.") from error
    if not isinstance(found, dict):
        raise InvalidConfig("TAPE_KAFKA_CONFIG must be a JSON object of librdkafka's settings.")
    return found
