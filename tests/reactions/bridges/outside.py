"""Receivers for bridges, with one interface for every broker."""

from __future__ import annotations

import abc
import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from tests.broker_services import KafkaCluster, NatsServer
from tests.pubsub import PROJECT, PubSub


class Received(NamedTuple):
    """A message as a receiver sees it."""

    body: bytes
    headers: dict[str, str]
    key: str | None  # None where the broker has no such thing


class Outside(abc.ABC):
    """A topic and a receiver of its messages."""

    target = ""

    @abc.abstractmethod
    async def receive(self, count: int) -> list[Received]:
        """The next messages; fails if they do not come."""


class NatsOutside(Outside):
    """A subject of a JetStream stream."""

    def __init__(self, server: NatsServer, subject: str, subscription: Any) -> None:
        self.target = f"nats://{server.address}/{subject}"
        self._subscription = subscription

    async def receive(self, count: int) -> list[Received]:
        found = []
        while len(found) < count:
            message = await self._subscription.next_msg(timeout=120)
            await message.ack()
            found.append(Received(message.data, dict(message.headers), None))
        return found


@asynccontextmanager
async def nats_outside(server: NatsServer) -> AsyncIterator[Outside]:
    import nats

    subject = f"tape.{uuid.uuid4().hex[:8]}"
    connection = await nats.connect(f"nats://{server.address}", max_reconnect_attempts=-1, reconnect_time_wait=0.1)
    try:
        stream = connection.jetstream()
        await stream.add_stream(name=subject.replace(".", "-"), subjects=[f"{subject}.>", subject])
        yield NatsOutside(server, subject, await stream.subscribe(subject, durable="reader"))
    finally:
        await connection.close()


class KafkaOutside(Outside):
    """A topic of a cluster, read from its beginning."""

    def __init__(self, cluster: KafkaCluster, topic: str, consumer: Any) -> None:
        self.target = f"kafka://{cluster.address}/{topic}"
        self._consumer = consumer

    async def receive(self, count: int) -> list[Received]:
        found: list[Received] = []
        async with asyncio.timeout(120):
            while len(found) < count:
                message = await asyncio.to_thread(self._consumer.poll, 0.2)
                if message is not None and message.error() is None:
                    headers = {name: value.decode() for name, value in message.headers()}
                    found.append(Received(message.value(), headers, message.key().decode()))
        return found


@asynccontextmanager
async def kafka_outside(cluster: KafkaCluster) -> AsyncIterator[Outside]:
    from confluent_kafka import Consumer

    topic = f"topic-{uuid.uuid4().hex[:8]}"
    settings = {"bootstrap.servers": cluster.address, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings | {"topic.metadata.refresh.interval.ms": 200, "log_level": 0})
    consumer.subscribe([topic])
    try:
        yield KafkaOutside(cluster, topic, consumer)
    finally:
        await asyncio.to_thread(consumer.close)


class PubSubOutside(Outside):
    """A topic of the emulator with a subscription that keeps order."""

    def __init__(self, topic: str, subscription: str, subscriber: Any) -> None:
        self.target = f"pubsub://{PROJECT}/{topic}"
        self.topic = topic
        self._subscriber = subscriber
        self._subscription = subscriber.subscription_path(PROJECT, subscription)

    async def receive(self, count: int) -> list[Received]:
        found: list[Received] = []
        async with asyncio.timeout(120):
            while len(found) < count:
                found += await asyncio.to_thread(self._pull)
        return found

    def _pull(self) -> list[Received]:
        from google.api_core.exceptions import DeadlineExceeded

        try:
            answer = self._subscriber.pull(
                request={"subscription": self._subscription, "max_messages": 100}, timeout=5, retry=None
            )
        except DeadlineExceeded:
            return []
        ids = [each.ack_id for each in answer.received_messages]
        if ids:
            self._subscriber.acknowledge(request={"subscription": self._subscription, "ack_ids": ids})
        return [
            Received(each.message.data, dict(each.message.attributes), each.message.ordering_key)
            for each in answer.received_messages
        ]


@asynccontextmanager
async def pubsub_outside(running: PubSub) -> AsyncIterator[Outside]:
    from google.cloud import pubsub_v1

    topic, subscription = await asyncio.to_thread(running.topic)
    with pubsub_v1.SubscriberClient() as subscriber:
        yield PubSubOutside(topic, subscription, subscriber)
