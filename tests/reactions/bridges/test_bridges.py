"""Bridges: one suite for every broker."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from tape.client import AsyncTapeClient
from tape.errors import InvalidTarget, MissingExtra
from tape.reactions import ReactionDef, run_bridge, run_pubsub_bridge
from tape.reactions.bridges.publishers import open_publisher
from tape.reactions.bridges.target import parse_target
from tape.reactions.counters import Tally
from tape.reactions.dispatcher import dispatch
from tape.server.server import Server
from tests.broker_services import NatsServer
from tests.engine.reactions.helpers import DLQ, DONE, PUBLISH, matched, register, tasks, until
from tests.pubsub import PubSub
from tests.reactions.bridges.outside import Outside, Received, nats_outside, pubsub_outside

SPAN = SpanContext(trace_id=0xABC, span_id=0xDEF, is_remote=False, trace_flags=TraceFlags(1))


@contextlib.asynccontextmanager
async def bridge(server: Server, run: Callable[..., None] = run_bridge, **options: Any) -> AsyncIterator[Tally]:
    """A bridge on a thread, as a program would run it."""
    stop, tally = threading.Event(), Tally()
    work = asyncio.create_task(
        asyncio.to_thread(run, f"tape://{server.grpc_address}", stop=stop, tally=tally, **options)
    )
    try:
        yield tally
        stop.set()
        await asyncio.wait_for(work, 120)
    finally:
        stop.set()


async def done(tally: Tally, count: int) -> None:
    async def is_done() -> bool:
        return tally.done >= count

    await until(is_done, f"{count} published; has {tally}")


def numbers(received: list[Received]) -> list[int]:
    return [msgspec.json.decode(msgspec.json.decode(each.body)["payload_json"])["n"] for each in received]


async def test_an_entry_is_published_with_its_name_its_run_and_its_trace(
    server: Server, client: AsyncTapeClient, outside: Outside
) -> None:
    await register(client, handler_kind=PUBLISH, publish_target=outside.target)
    async with bridge(server) as tally:
        with trace.use_span(NonRecordingSpan(SPAN)):
            await client.append("/tape/order/paid/1", {"n": 1}, run_id="run-1", schema_version=2)
        await done(tally, 1)
        (message,) = await outside.receive(1)
    entry = await anext(client.follow("/tape/order/**"))
    body = msgspec.json.decode(message.body)
    for name in ("run_id", "seq", "kind", "payload_json", "ts_ms", "global_seq", "subject", "schema_version"):
        assert body[name] == getattr(entry, name), name
    assert message.headers["tape-event-id"] == "run-1/1"
    assert message.headers["tape-subject"] == "/tape/order/paid/1"
    assert message.headers["tape-reaction-id"] == "r"
    assert message.headers["traceparent"].split("-")[1] == f"{0xABC:032x}"
    assert message.key in ("run-1", None)
    assert [task.status for task in await tasks(client)] == [DONE]


async def test_the_messages_of_a_run_keep_their_order_also_with_many_at_once(
    server: Server, client: AsyncTapeClient, outside: Outside
) -> None:
    await register(client, handler_kind=PUBLISH, publish_target=outside.target, max_concurrency=100)
    async with bridge(server, claim_max=50) as tally:
        for number in range(60):
            await client.append("/tape/order/paid/1", {"n": number}, run_id=f"run-{number % 3}")
        await done(tally, 60)
        received = await outside.receive(60)
    assert sorted(numbers(received)) == list(range(60))
    for run in range(3):
        mine = [n for n in numbers(received) if n % 3 == run]
        assert mine == sorted(mine)
    assert len({each.headers["tape-event-id"] for each in received}) == 60


async def test_once_publishes_what_is_there(server: Server, client: AsyncTapeClient, outside: Outside) -> None:
    await register(client, handler_kind=PUBLISH, publish_target=outside.target)
    for number in range(3):
        await client.append("/tape/order/paid/1", {"n": number}, run_id="é/\n*")
    tally = Tally()
    await asyncio.to_thread(run_bridge, f"tape://{server.grpc_address}", once=True, tally=tally)
    received = await outside.receive(3)
    assert sorted(numbers(received)) == [0, 1, 2]
    assert {each.headers["tape-event-id"] for each in received} == {f"%C3%A9/%0A*/{n}" for n in (1, 2, 3)}


async def test_a_dispatcher_can_serve_handlers_and_bridges_together(
    server: Server, client: AsyncTapeClient, outside: Outside
) -> None:
    handled: list[int] = []
    known = [
        ReactionDef("/tape/order/**", lambda envelope: handled.append(envelope.global_seq), reaction_id="local"),
        ReactionDef("/tape/order/**", handler_kind=3, publish_target=outside.target, reaction_id="away"),
    ]
    stop, tally = threading.Event(), Tally()
    url = f"tape://{server.grpc_address}"
    work = asyncio.create_task(dispatch(url, known, bridges=True, stop=stop, tally=tally))
    await until(lambda: _registered(client, 2), "registration")
    await client.append("/tape/order/paid/1", {"n": 7})
    await done(tally, 2)
    assert numbers(await outside.receive(1)) == [7]
    assert handled == [1]
    stop.set()
    await asyncio.wait_for(work, 120)


async def _registered(client: AsyncTapeClient, count: int) -> bool:
    return len((await client.list_reactions()).reactions) == count


async def test_a_reaction_that_is_registered_later_is_served_too(
    server: Server, client: AsyncTapeClient, nats_server: NatsServer
) -> None:
    async with nats_outside(nats_server) as outside, bridge(server) as tally:
        await register(client, handler_kind=PUBLISH, publish_target=outside.target)
        await client.append("/tape/order/paid/1", {"n": 1})
        await done(tally, 1)
        assert numbers(await outside.receive(1)) == [1]


async def test_no_message_is_lost_while_a_broker_is_unavailable(server: Server, client: AsyncTapeClient) -> None:
    with NatsServer() as broker:
        async with nats_outside(broker) as outside:
            await register(
                client,
                handler_kind=PUBLISH,
                publish_target=outside.target,
                retry_backoff_ms=50,
                dlq_after_n=1_000,
                retry_max=1_000,
            )
            async with bridge(server) as tally:
                await client.append("/tape/order/paid/1", {"n": 0})
                await done(tally, 1)
                broker.kill()
                await client.append("/tape/order/paid/1", {"n": 1})
                await matched(client)
                broker.start()
                await done(tally, 2)
                assert set(numbers(await outside.receive(2))) == {0, 1}


async def test_a_subject_without_a_stream_becomes_a_dead_letter_with_the_reason(
    server: Server, client: AsyncTapeClient, nats_server: NatsServer
) -> None:
    target = f"nats://{nats_server.address}/no.stream"
    await register(client, handler_kind=PUBLISH, publish_target=target, dlq_after_n=1)
    async with bridge(server) as tally:
        await client.append("/tape/order/paid/1", {})

        async def is_dead() -> bool:
            return tally.dead == 1

        await until(is_dead, "the dead letter")
    (dead,) = await tasks(client, status=DLQ)
    assert "no JetStream stream has the subject 'no.stream'" in dead.last_error


async def test_an_invalid_target_does_not_block_other_reactions(
    server: Server, client: AsyncTapeClient, nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with nats_outside(nats_server) as outside:
        await register(client, "odd", handler_kind=PUBLISH, publish_target="carrier://pigeon/loft")
        await register(client, "fine", handler_kind=PUBLISH, publish_target=outside.target)
        async with bridge(server) as tally:
            await client.append("/tape/order/paid/1", {"n": 1})
            await done(tally, 1)
            assert numbers(await outside.receive(1)) == [1]
    assert "the reaction odd cannot be served" in caplog.text


async def test_the_pubsub_bridge_publishes_to_the_topic_it_is_given(
    server: Server, client: AsyncTapeClient, pubsub: PubSub, nats_server: NatsServer
) -> None:
    await register(client, "a", handler_kind=PUBLISH, publish_target="pubsub://other/topic")
    await register(client, "b", handler_kind=PUBLISH, publish_target=f"nats://{nats_server.address}/untouched")
    async with pubsub_outside(pubsub) as outside:
        project, topic = outside.target.removeprefix("pubsub://").split("/")
        async with bridge(server, run_pubsub_bridge, project=project, topic=topic) as tally:
            await client.append("/tape/order/paid/1", {"n": 1})
            await done(tally, 1)
            (message,) = await outside.receive(1)
            assert message.headers["tape-reaction-id"] == "a"
        async with bridge(server, run_pubsub_bridge, project=project, topic=topic, reaction_id="b") as tally:
            await done(tally, 1)
            (message,) = await outside.receive(1)
            assert message.headers["tape-reaction-id"] == "b"


@pytest.mark.parametrize(
    "text", ["nats://host", "pubsub:///topic", "sqs://a/b", "kafka://host/", "nats://h/s?x=1", "nonsense"]
)
def test_a_target_says_broker_and_name(text: str) -> None:
    with pytest.raises(InvalidTarget, match="must look like pubsub://project/topic"):
        parse_target(text)


def test_targets_are_read_and_shown_without_passwords() -> None:
    assert tuple(parse_target("kafka://a:1,b:2/topic")) == ("kafka", "a:1,b:2", "topic")
    assert str(parse_target("nats://me:secret@host:4222/orders.paid")) == "nats://host:4222/orders.paid"


@pytest.mark.parametrize(
    ("target", "module", "extra"),
    [
        ("nats://h/s", "nats", "nats"),
        ("kafka://h/t", "confluent_kafka", "kafka"),
        ("pubsub://p/t", "google.cloud", "pubsub"),
    ],
)
def test_a_missing_client_is_named(target: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'tape\[{extra}\]'"):
        open_publisher(parse_target(target))
