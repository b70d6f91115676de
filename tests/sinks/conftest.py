"""Entries as the journal gives them, and targets of every kind."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tape.model.message import fields_of
from tape.proto import tape_pb2 as pb
from tape.sinks import AIPlexSink, FnSink, KafkaSink, LogSink, NatsSink, PubSubSink, WebhookSink
from tests.sinks.receivers import HttpReceiver, KafkaBroker, Process, Received, nats_server, pubsub_emulator

TRACE_ID, SPAN_ID = f"{0xABC:032x}", f"{0xDEF:016x}"


def entry(number: int, run_id: str = "r-1", payload: str = "{}") -> pb.EventEntry:
    return pb.EventEntry(
        run_id=run_id,
        seq=number,
        kind="effect",
        payload_json=payload,
        ts_ms=1_714_900_800_000 + number,
        global_seq=number,
        subject=f"/tape/effect/confirmed/pay.card/{run_id}",
        schema_version=2,
        trace_id=TRACE_ID,
        span_id=SPAN_ID,
    )


@pytest.fixture
def http() -> Iterator[HttpReceiver]:
    receiver = HttpReceiver()
    yield receiver
    receiver.close()


@pytest.fixture(scope="session")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    server = nats_server(tmp_path_factory.mktemp("nats"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaBroker]:
    broker = KafkaBroker()
    yield broker
    broker.close()


@pytest.fixture(scope="session")
def pubsub() -> Iterator[Process]:
    emulator = pubsub_emulator()
    yield emulator
    emulator.close()


class Target:
    """A sink and a way to see what arrived behind it."""

    def __init__(self, sink: Any, received: Callable[[int], list[Received]]) -> None:
        self.sink = sink
        self.received = received


@pytest.fixture(params=["log", "function", "webhook", "webhook-many", "aiplex", "nats", "kafka", "pubsub"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    """Every sink with a real receiver."""
    name = f"t{time.time_ns()}"
    made: Target = globals()[f"_{request.param.replace('-', '_')}"](request, tmp_path, name)
    yield made
    made.sink.close()


def _log(request: Any, tmp_path: Path, name: str) -> Target:
    path = tmp_path / "log.jsonl"

    def received(count: int) -> list[Received]:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return [Received(f"{line['run_id']}/{line['seq']}", line) for line in lines]

    return Target(LogSink(str(path)), received)


def _function(request: Any, tmp_path: Path, name: str) -> Target:
    seen: list[Received] = []

    def take(entry: Any) -> None:
        seen.append(Received(f"{entry.run_id}/{entry.seq}", fields_of(entry)))

    return Target(FnSink(take), lambda count: seen)


def _webhook(request: Any, tmp_path: Path, name: str, **options: Any) -> Target:
    http = request.getfixturevalue("http")
    return Target(WebhookSink(http.url, allow_private=True, **options), lambda count: http.received)


def _webhook_many(request: Any, tmp_path: Path, name: str) -> Target:
    return _webhook(request, tmp_path, name, concurrency=4)


def _aiplex(request: Any, tmp_path: Path, name: str) -> Target:
    http = request.getfixturevalue("http")

    def received(count: int) -> list[Received]:
        return [Received(e.pop("event_id"), e) for batch in http.received for e in batch.body["events"]]

    return Target(AIPlexSink(url=http.url, tenant_id="t", batch_size=7, allow_private=True), received)


def _nats(request: Any, tmp_path: Path, name: str) -> Target:
    import nats

    url = f"nats://127.0.0.1:{request.getfixturevalue('nats').port}"

    async def make() -> None:
        connection = await nats.connect(url)
        await connection.jetstream().add_stream(name=name, subjects=[f"{name}.>"])
        await connection.close()

    async def read(count: int) -> list[Received]:
        connection = await nats.connect(url)
        subscription = await connection.jetstream().subscribe(f"{name}.>", ordered_consumer=True)
        found = []
        while len(found) < count:
            message = await subscription.next_msg(timeout=120)
            found.append(Received(message.headers["tape-event-id"], json.loads(message.data), dict(message.headers)))
        await connection.close()
        return found

    asyncio.run(make())
    return Target(NatsSink(url, f"{name}.entries"), lambda count: asyncio.run(read(count)))


def _kafka(request: Any, tmp_path: Path, name: str) -> Target:
    from confluent_kafka import Consumer

    servers = request.getfixturevalue("kafka").servers

    def read(count: int) -> list[Received]:
        consumer = Consumer({"bootstrap.servers": servers, "group.id": name, "auto.offset.reset": "earliest"})
        consumer.subscribe([name])
        found: list[Received] = []
        deadline = time.monotonic() + 120
        while len(found) < count:
            assert time.monotonic() < deadline, f"only {len(found)} of {count} records arrived"
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                headers = {key: value.decode() for key, value in message.headers()}
                assert message.key().decode() == json.loads(message.value())["run_id"]
                found.append(Received(headers["tape-event-id"], json.loads(message.value()), headers))
        consumer.close()
        return found

    return Target(KafkaSink(servers, name), read)


def _pubsub(request: Any, tmp_path: Path, name: str) -> Target:
    emulator = request.getfixturevalue("pubsub")
    request.getfixturevalue("monkeypatch").setenv("PUBSUB_EMULATOR_HOST", f"127.0.0.1:{emulator.port}")
    from google.cloud import pubsub_v1

    subscriber, publisher = pubsub_v1.SubscriberClient(), pubsub_v1.PublisherClient()
    topic = publisher.create_topic(name=publisher.topic_path("tape-test", name)).name
    subscription = subscriber.subscription_path("tape-test", name)
    subscriber.create_subscription(request={"name": subscription, "topic": topic, "enable_message_ordering": True})

    def read(count: int) -> list[Received]:
        found: list[Received] = []
        while len(found) < count:
            answer = subscriber.pull(subscription=subscription, max_messages=100, timeout=120)
            for each in answer.received_messages:
                attributes = dict(each.message.attributes)
                body = json.loads(each.message.data)
                assert each.message.ordering_key == body["run_id"]
                found.append(Received(attributes["tape-event-id"], body, attributes))
            subscriber.acknowledge(
                subscription=subscription, ack_ids=[each.ack_id for each in answer.received_messages]
            )
        subscriber.close()
        publisher.stop()
        return found

    return Target(PubSubSink("tape-test", name), read)
