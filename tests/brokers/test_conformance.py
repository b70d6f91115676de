"""What every source does: nothing is gone before it is acknowledged, nothing comes back after."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tape.brokers import Delivery, Source, open_source
from tape.errors import SourceError, SourceMisconfigured, SourceUnavailable
from tests.brokers.rigs import Rig, amqp_rig, kafka_rig, memory_rig, mqtt_rig, nats_rig, pubsub_rig, sqs_rig

WAIT_S = 10.0


BROKERS = [
    "nats",
    "kafka",
    "pubsub",
    "pubsub-streaming",
    "mqtt",
    "mqtt-3.1.1",
    "sqs",
    "sqs-fifo",
    "amqp",
    "amqp-classic",
]


@pytest.fixture(params=[*BROKERS, "memory"])
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    async with rig_of(request) as made:
        yield made


@pytest.fixture(params=BROKERS)
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    async with rig_of(request) as made:
        yield made


@asynccontextmanager
async def rig_of(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    if request.param == "memory":
        made = memory_rig()
    elif request.param == "nats":
        made = await nats_rig(request.getfixturevalue("nats_server"))
    elif request.param == "kafka":
        made = await kafka_rig(request.getfixturevalue("kafka_cluster"))
    elif request.param.startswith("mqtt"):
        protocol = "mqtt3.1.1" if request.param == "mqtt-3.1.1" else "mqtt5"
        made = await mqtt_rig(request.getfixturevalue("mqtt_broker"), protocol)
    elif request.param.startswith("sqs"):
        made = await sqs_rig(request.getfixturevalue("sqs_service"), fifo=request.param == "sqs-fifo")
    elif request.param.startswith("amqp"):
        kind = "classic" if request.param == "amqp-classic" else "quorum"
        made = await amqp_rig(request.getfixturevalue("amqp_broker"), kind)
    else:
        made = await pubsub_rig(request.getfixturevalue("pubsub_server"), streaming=request.param != "pubsub")
    yield made
    for source in made.opened:
        await source.close()


async def fetch(source: Source, count: int, limit: int = 100) -> list[Delivery]:
    """So many messages, however many polls that takes."""
    found: list[Delivery] = []
    empty = 0
    while len(found) < count and empty < 5:
        more = await source.poll(min(limit, count - len(found)), WAIT_S)
        found += more
        empty += not more
    return found


def receipts(deliveries: list[Delivery]) -> list[str]:
    return [each.receipt for each in deliveries]


async def test_messages_come_whole_and_in_order_and_are_gone_once_acknowledged(rig: Rig) -> None:
    bodies = [f'{{"n": {number}}}'.encode() for number in range(6)]
    source = rig.open()
    await source.open()
    await rig.feed(*bodies, headers=[("X-Kind", "order"), ("traceparent", "00-1")])
    got = await fetch(source, 6)
    assert [each.body for each in got] == bodies
    assert len({each.message_id for each in got}) == 6
    assert dict(got[0].headers) == ({"X-Kind": "order", "traceparent": "00-1"} if rig.has_headers else {})
    assert [each.deliveries for each in got] == [1] * 6
    await source.ack(receipts(got))
    assert await source.poll(10, 0.2) == []
    await source.close()
    # another process finds nothing either, but what was published meanwhile
    await rig.feed(b"later")
    again = rig.open()
    await again.open()
    assert [each.body for each in await fetch(again, 1)] == [b"later"]


async def test_an_unacknowledged_message_is_redelivered_to_the_next_reader(rig: Rig) -> None:
    source = rig.open()
    await source.open()
    await rig.feed(b"one", b"two")
    first = await fetch(source, 2)
    await source.ack([first[0].receipt])
    await source.nack([first[1].receipt])
    (again,) = await fetch(source, 1)
    assert (again.body, again.deliveries) == (b"two", 2)
    assert again.message_id == first[1].message_id
    await source.ack([again.receipt])
    assert await source.poll(10, 0.2) == []


async def test_a_terminated_message_is_never_redelivered(rig: Rig) -> None:
    source = rig.open()
    await source.open()
    await rig.feed(b"poison", b"good")
    poison, good = await fetch(source, 2)
    await source.term([poison.receipt])
    await source.nack([good.receipt])
    (again,) = await fetch(source, 1)
    assert again.body == b"good"
    await source.ack([again.receipt])
    assert await source.poll(10, 0.2) == []


async def test_a_poll_gives_at_most_what_was_asked_for_and_keeps_the_rest(rig: Rig) -> None:
    source = rig.open()
    await source.open()
    await rig.feed(*(str(number).encode() for number in range(7)))
    got: list[Delivery] = []
    while len(got) < 7:
        some = await source.poll(3, WAIT_S)
        assert 1 <= len(some) <= 3
        await source.ack(receipts(some))
        got += some
    assert [each.body for each in got] == [str(number).encode() for number in range(7)]


async def test_an_empty_source_gives_nothing_after_the_wait(rig: Rig) -> None:
    source = rig.open()
    await source.open()
    assert await source.poll(10, 0.2) == []
    await source.ack([])
    await source.nack([])
    await source.release()
    assert await source.poll(10, 0.2) == []


async def test_a_missing_stream_topic_or_subscription_is_reported_on_open(broker: Rig) -> None:
    source = broker.open(**broker.missing)
    with pytest.raises(SourceError) as raised:
        await source.open()
    assert next(iter(broker.missing.values())).rpartition("://")[2] in str(raised.value)
    with pytest.raises(SourceUnavailable):
        await source.poll(1, 0.1)


async def test_every_setting_that_lacks_is_named(broker: Rig) -> None:
    needed = {
        "nats": ("stream", "consumer", "url"),
        "kafka": ("brokers", "topic", "group"),
        "pubsub": ("subscription",),
        "mqtt": ("url", "client_id", "topic"),
        "sqs": ("queue", "region"),
        "amqp": ("url", "queue"),
    }
    for name in needed[broker.name]:
        spec = {key: value for key, value in broker.spec.items() if key != name}
        with pytest.raises(SourceMisconfigured, match=rf"subscription\[{broker.name}\] requires '{name}'"):
            open_source(broker.name, spec)
        # a credential may have it
        open_source(broker.name, spec, {name: broker.spec[name]})


async def test_receipts_are_settled_by_another_process_where_the_source_says_so(broker: Rig) -> None:
    source, other = broker.open(), broker.open()
    assert source.settles_elsewhere is broker.settles_elsewhere  # vocabulary: public attribute of sources
    if not source.settles_elsewhere:  # vocabulary: public attribute of sources
        return
    await source.open()
    await broker.feed(b"one", b"two")
    one, two = await fetch(source, 2)
    await other.open()
    await other.ack([one.receipt])
    await other.nack([two.receipt])
    assert [each.body for each in await fetch(source, 1)] == [b"two"]
