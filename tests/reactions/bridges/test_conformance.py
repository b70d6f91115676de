"""Sinks and bridges send the same message for the same entry, to every broker."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import nats
import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from tape.client import AsyncTapeClient
from tape.model.message import BodyFormat, encode_body
from tape.reactions.bridges.target import parse_target
from tape.server.server import Server
from tape.sinks import KafkaSink, NatsSink, PubSubSink, WebhookSink
from tape.sinks.broker import BrokerSink
from tests.broker_services import KafkaCluster, NatsServer
from tests.engine.reactions.helpers import DLQ, PUBLISH, register, tasks, until
from tests.pubsub import PubSub
from tests.reactions.bridges.outside import Outside
from tests.reactions.bridges.test_bridges import bridge, done
from tests.sinks.receivers import HttpReceiver

RUN_ID = "Auftrag 42/käse 100%"
EVENT_ID = "Auftrag%2042/k%C3%A4se%20100%25/1"
SPAN = SpanContext(trace_id=0xABC, span_id=0xDEF, is_remote=False, trace_flags=TraceFlags(1))
TRACEPARENT = f"00-{0xABC:032x}-{0xDEF:016x}-01"
# What a bridge adds: its reaction, and the id by which JetStream drops duplicates, which has the reaction in it.
ADDED_BY_BRIDGES = {"tape-reaction-id", "Nats-Msg-Id"}


def sink_for(target: str, body: BodyFormat = "standard") -> BrokerSink:
    """The sink that publishes to the target of a bridge."""
    scheme, broker, name = parse_target(target)
    if scheme == "nats":
        return NatsSink(f"nats://{broker}", name, body=body)
    if scheme == "kafka":
        return KafkaSink(broker, name, body=body)
    return PubSubSink(broker, name, body=body)


async def append_traced(client: AsyncTapeClient, payload: Any) -> Any:
    with trace.use_span(NonRecordingSpan(SPAN)):
        await client.append("/tape/order/paid/1", payload, run_id=RUN_ID, schema_version=3)
    return await anext(client.follow("/tape/order/**"))


@pytest.mark.parametrize("body", ["standard", "expanded", "cloudevents"])
async def test_a_sink_and_a_bridge_send_the_same_message_for_the_same_entry(
    server: Server, client: AsyncTapeClient, outside: Outside, body: BodyFormat
) -> None:
    await register(client, handler_kind=PUBLISH, publish_target=outside.target)
    entry = await append_traced(client, {"total": "5 €"})
    async with bridge(server, body=body) as tally:
        await done(tally, 1)
        (by_bridge,) = await outside.receive(1)
    sink = sink_for(outside.target, body)
    await asyncio.to_thread(sink.publish, entry)
    (by_sink,) = await outside.receive(1)
    await asyncio.to_thread(sink.close)

    assert by_bridge.body == by_sink.body == encode_body(entry, body)
    assert by_bridge.key == by_sink.key
    assert by_sink.key in (RUN_ID, None)
    for received in (by_bridge, by_sink):
        shared = {name: value for name, value in received.headers.items() if name not in ADDED_BY_BRIDGES}
        assert shared == {
            "tape-event-id": EVENT_ID,
            "kind": "order",
            "tape-subject": "/tape/order/paid/1",
            "traceparent": TRACEPARENT,
            **({"content-type": "application/cloudevents+json"} if body == "cloudevents" else {}),
        }
    assert by_sink.headers.get("Nats-Msg-Id", EVENT_ID) == EVENT_ID
    assert by_bridge.headers["tape-reaction-id"] == "r"


async def test_the_body_is_the_same_for_webhooks(server: Server, client: AsyncTapeClient) -> None:
    entry = await append_traced(client, {"total": 1})
    receiver = HttpReceiver()
    for body, content_type in (
        ("standard", "application/json"),
        ("expanded", "application/json"),
        ("cloudevents", "application/cloudevents+json"),
    ):
        sink = WebhookSink(receiver.url, allow_private=True, body=body)  # type: ignore[arg-type]
        await asyncio.to_thread(sink.publish, entry)
        sink.close()
        got = receiver.received[-1]
        assert got.raw == encode_body(entry, body)  # type: ignore[arg-type]
        assert (got.event_id, got.headers["Content-Type"]) == (EVENT_ID, content_type)
    receiver.close()


async def test_the_formats_of_the_body_add_to_the_five_fields(server: Server, client: AsyncTapeClient) -> None:
    entry = await append_traced(client, {"total": 1})
    standard = msgspec.json.decode(encode_body(entry))
    assert standard == {
        "run_id": RUN_ID,
        "seq": 1,
        "kind": "order",
        "payload_json": '{"total":1}',
        "ts_ms": entry.ts_ms,
        "global_seq": entry.global_seq,
        "subject": "/tape/order/paid/1",
        "type": "order.paid",
        "schema_version": 3,
        "trace_id": f"{0xABC:032x}",
        "span_id": f"{0xDEF:016x}",
    }
    assert list(standard)[:5] == ["run_id", "seq", "kind", "payload_json", "ts_ms"]
    assert msgspec.json.decode(encode_body(entry, "expanded")) == {**standard, "payload": {"total": 1}}
    event = msgspec.json.decode(encode_body(entry, "cloudevents"))
    assert {name: event[name] for name in ("specversion", "id", "source", "type", "subject", "partitionkey")} == {
        "specversion": "1.0",
        "id": EVENT_ID,
        "source": "/tape",
        "type": "order.paid",
        "subject": "1",
        "partitionkey": RUN_ID,
    }
    assert (event["data"], event["traceparent"]) == ({"total": 1}, TRACEPARENT)


async def dead_letter_of(server: Server, client: AsyncTapeClient) -> Any:
    """The dead letter that a bridge leaves behind."""
    async with bridge(server) as tally:

        async def is_dead() -> bool:
            return tally.dead == 1

        await until(is_dead, "the dead letter")
    (dead,) = await tasks(client, status=DLQ)
    return dead


LARGE = {"texts": ["a"] * 500}


async def test_a_bridge_does_not_retry_a_message_that_is_too_large_for_a_stream(
    server: Server, client: AsyncTapeClient, nats_server: NatsServer
) -> None:
    connection = await nats.connect(f"nats://{nats_server.address}")
    await connection.jetstream().add_stream(name="small", subjects=["small"], max_msg_size=1_000)
    await connection.close()
    target = f"nats://{nats_server.address}/small"
    await register(client, handler_kind=PUBLISH, publish_target=target, dlq_after_n=5, retry_backoff_ms=1)
    await client.append("/tape/order/paid/1", LARGE)
    dead = await dead_letter_of(server, client)
    assert dead.attempts == 1
    assert "BadRequestError" in dead.last_error


async def test_a_bridge_does_not_retry_a_message_that_is_too_large_for_kafka(
    server: Server, client: AsyncTapeClient, kafka_cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAPE_KAFKA_CONFIG", '{"message.max.bytes": 1000}')
    target = f"kafka://{kafka_cluster.address}/small"
    await register(client, handler_kind=PUBLISH, publish_target=target, dlq_after_n=5, retry_backoff_ms=1)
    await client.append("/tape/order/paid/1", LARGE)
    dead = await dead_letter_of(server, client)
    assert dead.attempts == 1
    assert "MSG_SIZE_TOO_LARGE" in dead.last_error


async def test_a_bridge_does_not_retry_a_topic_that_does_not_exist(
    server: Server, client: AsyncTapeClient, pubsub: PubSub
) -> None:
    target = "pubsub://tape-tests/no-such-topic"
    await register(client, handler_kind=PUBLISH, publish_target=target, dlq_after_n=5, retry_backoff_ms=1)
    await client.append("/tape/order/paid/1", {})
    dead = await dead_letter_of(server, client)
    assert dead.attempts == 1
    assert "NotFound" in dead.last_error
