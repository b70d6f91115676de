"""Senders: each message is sent until its taker has said that it has it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import threading
import uuid
from typing import Any, Protocol

import urllib3

from tests.broker_services import KafkaCluster, NatsServer
from tests.faults.cells import SECRET_ALIAS, Cell
from tests.faults.story import Sent, key_of

SECRET = "whsec-very-s3cret"


class Feed(Protocol):
    """A way into a subscription."""

    connection: dict[str, Any]

    def deliver(self, message: Sent) -> bool:
        """Send a message once; whether it was taken for good."""

    def is_empty(self) -> bool:
        """Whether the source has nothing left to deliver."""

    def close(self) -> None:
        """Let go."""


# A sender that is refused this often, over five minutes or more, has found a fault and not an outage.
MAX_TIMES = 6_000


class Sender(threading.Thread):
    """Sends messages one after the other, each until it is taken; `sent` grows meanwhile."""

    def __init__(self, feed: Feed, count: int, rest_s: float, first: int = 0) -> None:
        super().__init__(name="sender", daemon=True)
        self.sent: list[Sent] = []
        self._feed = feed
        self._numbers = range(first, first + count)
        self._rest_s = rest_s
        self._stopping = threading.Event()
        self._is_finishing = threading.Event()

    def run(self) -> None:
        for number in self._numbers:
            if self._is_finishing.is_set():
                return
            message = self.message(number)
            while not self._stopping.is_set() and message.times < MAX_TIMES:
                message.times += 1
                if self._feed.deliver(message):
                    break
                self._stopping.wait(0.05)
            self.sent.append(message)
            self._stopping.wait(self._rest_s)

    def message(self, number: int) -> Sent:
        """A message that was not sent yet."""
        return Sent(number, key_of(number))

    def finish(self) -> None:
        """End when the message that is being sent is taken."""
        self._is_finishing.set()
        self.join()

    def stop(self) -> None:
        """End, whatever is still to be sent."""
        self._stopping.set()
        self.join()


def _body(message: Sent) -> bytes:
    return json.dumps({"n": message.number, "key": message.key, "device_id": message.key}).encode()


class NatsFeed:
    """A stream; one that was killed has what it acknowledged, and knows a repetition."""

    def __init__(self, server: NatsServer) -> None:
        self._url = f"nats://{server.address}"
        self._stream = f"S{uuid.uuid4().hex[:8]}"
        self._loop = asyncio.new_event_loop()
        self._client: Any = None
        self.connection = {"url": self._url, "stream": self._stream, "consumer": "readers"}
        self._loop.run_until_complete(self._make())

    def deliver(self, message: Sent) -> bool:
        return self._loop.run_until_complete(self._deliver(message))

    def is_empty(self) -> bool:
        return self._loop.run_until_complete(self._is_empty())

    def close(self) -> None:
        self._loop.run_until_complete(self._forget())
        self._loop.close()

    async def _connected(self) -> Any:
        import nats

        if self._client is None:
            self._client = await nats.connect(self._url, allow_reconnect=False, error_cb=_silently)
        return self._client.jetstream()

    async def _make(self) -> None:
        jetstream = await self._connected()
        await jetstream.add_stream(name=self._stream, subjects=[f"{self._stream}.>"])
        await jetstream.add_consumer(self._stream, durable_name="readers", ack_policy="explicit", ack_wait=2)

    async def _deliver(self, message: Sent) -> bool:
        headers = {"Nats-Msg-Id": str(message.number)}
        try:
            jetstream = await self._connected()
            await jetstream.publish(f"{self._stream}.orders", _body(message), headers=headers, timeout=2)
        except Exception:  # whatever its client says: it is sent again
            await self._forget()
            return False
        return True

    async def _is_empty(self) -> bool:
        try:
            info = await (await self._connected()).consumer_info(self._stream, "readers")
        except Exception:
            await self._forget()  # it was connected to a broker that has died since
            raise
        return bool(info.num_pending == 0 and info.num_ack_pending == 0)

    async def _forget(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):
                await client.close()


async def _silently(_: Exception) -> None:
    """What a client would print."""


class KafkaFeed:
    """A topic of the mock cluster: one partition where all is one order, several where keys have theirs."""

    def __init__(self, cluster: KafkaCluster, cell: Cell) -> None:
        from confluent_kafka import Producer

        self._topic = f"topic-{uuid.uuid4().hex[:8]}"
        self._group = f"group-{self._topic}"
        self._brokers = cluster.address
        self._partition = 0 if cell.ordering == "global" else -1
        self._producer = Producer({"bootstrap.servers": cluster.address, "partitioner": "consistent"})
        self._producer.list_topics(self._topic, timeout=30)
        self.connection = {
            "brokers": cluster.address,
            "topic": self._topic,
            "group": self._group,
            "options": {"session.timeout.ms": "2000", "heartbeat.interval.ms": "200"},
        }

    def deliver(self, message: Sent) -> bool:
        self._producer.produce(self._topic, _body(message), key=message.key.encode(), partition=self._partition)
        return self._producer.flush(30) == 0

    def is_empty(self) -> bool:
        """Whether everything is committed."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self._brokers, "group.id": self._group})
        try:
            partitions = consumer.list_topics(self._topic, timeout=30).topics[self._topic].partitions
            positions = [TopicPartition(self._topic, number) for number in partitions]
            for position in consumer.committed(positions, timeout=30):
                _, high = consumer.get_watermark_offsets(position, timeout=30)
                if max(position.offset, 0) < high:
                    return False
            return True
        finally:
            consumer.close()

    def close(self) -> None:
        self._producer.flush(5)


class WebhookFeed:
    """A sender of webhooks to a gateway: it waits for each answer, and sends again what was not accepted."""

    def __init__(self, gateway_port: int) -> None:
        self._url = f"http://127.0.0.1:{gateway_port}/ingress/orders"
        self._http = urllib3.PoolManager(retries=False, timeout=60)
        self.connection = {
            "mode": "push",
            "ingress": {
                "gateway_path": "/ingress/orders",
                "verify": {"type": "hmac_sha256", "header": "X-Signature", "secret": SECRET_ALIAS},
            },
        }

    def deliver(self, message: Sent) -> bool:
        body = _body(message)
        signature = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        headers = {"x-signature": signature, "x-message-id": f"m{message.number}"}
        try:
            return self._http.request("POST", self._url, body=body, headers=headers).status == 202
        except urllib3.exceptions.HTTPError:
            return False

    def is_empty(self) -> bool:
        return True

    def close(self) -> None:
        self._http.clear()
