"""Every source with a broker behind it: what a conformance test needs to feed it."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from tape.brokers import Source, open_source
from tape.brokers.memory import MemorySource
from tests.amqp_broker import RabbitMq
from tests.broker_services import KafkaCluster, NatsServer
from tests.debian_packages import NotAvailable
from tests.mqtt_broker import Mosquitto
from tests.pubsub import PROJECT, PubSub, emulator
from tests.sqs_service import LOGIN, REGION, SqsService

Headers = Sequence[tuple[str, str]]
B = TypeVar("B")


@dataclass
class Rig:
    """A source's name and settings, and how to publish to what it reads."""

    name: str
    spec: dict[str, Any]
    publish: Callable[[bytes, Headers], Any]
    missing: dict[str, Any]
    settles_elsewhere: bool = True  # vocabulary: public attribute of sources
    has_headers: bool = True
    opened: list[Source] = field(default_factory=list)
    only: Source | None = None

    def open(self, **more: Any) -> Source:
        """A source on this rig's stream, closed by the fixture."""
        source = self.only or open_source(self.name, self.spec | more)
        self.opened.append(source)
        return source

    async def open_once(self) -> None:
        """Connect as a runtime will: an MQTT broker keeps messages for sessions that it knows."""
        source = open_source(self.name, self.spec)
        await source.open()
        await source.close()

    async def feed(self, *bodies: bytes, headers: Headers = ()) -> None:
        """Publish messages in order."""
        for body in bodies:
            await self.publish(body, headers)


def memory_rig() -> Rig:
    source = MemorySource()

    async def publish(body: bytes, headers: Headers) -> None:
        source.publish(body, headers)

    return Rig("memory", {}, publish, {}, only=source)


async def nats_rig(server: NatsServer) -> Rig:
    import nats

    name = f"S{uuid.uuid4().hex[:8]}"
    url = f"nats://{server.address}"
    connection = await nats.connect(url)
    await connection.jetstream().add_stream(name=name, subjects=[f"{name}.>"])
    config = nats.js.api.ConsumerConfig(ack_wait=30, ack_policy=nats.js.api.AckPolicy.EXPLICIT, durable_name="readers")
    await connection.jetstream().add_consumer(name, config)
    await connection.close()

    async def publish(body: bytes, headers: Headers) -> None:
        raw = b"NATS/1.0\r\n" + b"".join(f"{key}: {value}\r\n".encode() for key, value in headers) + b"\r\n"
        reader, writer = await asyncio.open_connection(*server.address.split(":"))
        answer = f"_INBOX.{uuid.uuid4().hex}"
        writer.write(f'CONNECT {{"verbose":false,"headers":true}}\r\nSUB {answer} 1\r\n'.encode())
        writer.write(
            f"HPUB {name}.orders {answer} {len(raw)} {len(raw) + len(body)}\r\n".encode() + raw + body + b"\r\n"
        )
        answer = b""
        while not answer.startswith(b"MSG"):  # the stream has it
            answer = await reader.readline()
            assert answer, "the NATS server hung up"
            assert not answer.startswith(b"-ERR"), answer
        writer.close()

    spec = {"url": url, "stream": name, "consumer": "readers"}
    return Rig("nats", spec, publish, {"stream": "NOWHERE"})


async def kafka_rig(cluster: KafkaCluster) -> Rig:
    from confluent_kafka import Producer

    name = f"topic-{uuid.uuid4().hex[:8]}"
    producer = Producer({"bootstrap.servers": cluster.address, "partitioner": "consistent"})

    async def publish(body: bytes, headers: Headers) -> None:
        pairs: Any = [(key, value.encode()) for key, value in headers]
        producer.produce(name, body, key=b"one", headers=pairs)
        producer.flush(120)

    spec = {
        "brokers": cluster.address,
        "topic": name,
        "group": f"group-{name}",
        "options": {"session.timeout.ms": "6000", "heartbeat.interval.ms": "200"},
    }
    producer.list_topics(name, timeout=120)
    return Rig(
        "kafka",
        spec,
        publish,
        {"brokers": "127.0.0.1:1"},
        settles_elsewhere=False,  # vocabulary: public attribute of sources
    )


async def pubsub_rig(server: PubSub, **more: Any) -> Rig:
    from google.cloud import pubsub_v1

    topic, subscription = server.topic()
    options = pubsub_v1.types.PublisherOptions(enable_message_ordering=True)
    publisher = pubsub_v1.PublisherClient(publisher_options=options)
    path = publisher.topic_path(PROJECT, topic)

    async def publish(body: bytes, headers: Headers) -> None:
        publisher.publish(path, body, ordering_key="one", **dict(headers)).result(120)

    spec = {"subscription": f"projects/{PROJECT}/subscriptions/{subscription}", "endpoint": server.address, **more}
    return Rig("pubsub", spec, publish, {"subscription": f"projects/{PROJECT}/subscriptions/nowhere"})


async def mqtt_rig(broker: Mosquitto, protocol: str = "mqtt5", **more: Any) -> Rig:
    from paho.mqtt import client as mqtt
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    topic = f"orders/{uuid.uuid4().hex[:8]}"

    def send(body: bytes, headers: Headers) -> None:
        properties = Properties(PacketTypes.PUBLISH)
        if headers:
            properties.UserProperty = list(headers)
        client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
        client.connect("127.0.0.1", broker.port)
        client.loop_start()
        client.publish(topic, body, qos=2, properties=properties).wait_for_publish(120)
        client.disconnect()
        client.loop_stop()

    async def publish(body: bytes, headers: Headers) -> None:
        await asyncio.to_thread(send, body, headers)

    spec = {"url": f"mqtt://{broker.address}", "topic": topic, "client_id": f"tape-{topic[-8:]}", **more}
    if protocol != "mqtt5":
        spec["protocol"] = protocol
    return Rig(
        "mqtt",
        spec,
        publish,
        {"url": "mqtt://127.0.0.1:1"},
        settles_elsewhere=False,  # vocabulary: public attribute of sources
        has_headers=protocol == "mqtt5",
    )


async def sqs_rig(service: SqsService, *, fifo: bool = True, **more: Any) -> Rig:
    queue = service.queue(fifo=fifo)

    async def publish(body: bytes, headers: Headers) -> None:
        await asyncio.to_thread(service.send, queue, body.decode(), dict(headers))

    spec = {"queue": queue, "region": REGION, "endpoint": service.url, **LOGIN, **more}
    return Rig("sqs", spec, publish, {"queue": "nowhere.fifo"})


async def amqp_rig(broker: RabbitMq, kind: str = "quorum", **more: Any) -> Rig:
    import aiormq

    queue = f"orders-{uuid.uuid4().hex[:8]}"
    url = f"amqp://{broker.address}"
    connection = await aiormq.connect(url)
    channel = await connection.channel()
    await channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
    await connection.close()

    async def publish(body: bytes, headers: Headers) -> None:
        table: dict[str, Any] = {}
        for name, value in headers:
            table[name] = value if name not in table else [*_listed(table[name]), value]
        connection = await aiormq.connect(url)
        channel = await connection.channel()  # confirms
        properties = aiormq.spec.Basic.Properties(delivery_mode=2, headers=table)
        await channel.basic_publish(body, routing_key=queue, properties=properties)
        await connection.close()

    return Rig(
        "amqp",
        {"url": url, "queue": queue, **more},
        publish,
        {"queue": "nowhere"},
        settles_elsewhere=False,  # vocabulary: public attribute of sources
    )


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


@pytest.fixture(scope="session")
def mqtt_broker() -> Iterator[Mosquitto]:
    with or_skip(Mosquitto()) as broker:
        yield broker


@pytest.fixture(scope="session")
def amqp_broker() -> Iterator[RabbitMq]:
    with or_skip(RabbitMq()) as broker:
        yield broker


@pytest.fixture(scope="session")
def sqs_service() -> Iterator[SqsService]:
    with SqsService() as service:
        yield service


@contextlib.contextmanager
def or_skip(broker: AbstractContextManager[B]) -> Iterator[B]:
    """A broker from a package, or a skipped test that says why it cannot be had."""
    with contextlib.ExitStack() as stack:
        try:
            opened = stack.enter_context(broker)
        except NotAvailable as error:
            pytest.skip(str(error))
        yield opened


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture(scope="session")
def kafka_cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def pubsub_server() -> Iterator[PubSub]:
    if emulator() is None:
        pytest.skip("the Pub/Sub emulator is not on this machine (gcloud components install pubsub-emulator)")
    with PubSub() as server:
        yield server
