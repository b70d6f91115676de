"""What AMQP has and other brokers have not: exchanges, prefetch, dead letters of the broker, arrays in headers."""

from __future__ import annotations

import uuid
from typing import Any

import aiormq
import pytest

from tape.brokers import open_source
from tape.brokers.source import Delivery, Source
from tape.errors import SourceMisconfigured, SourceMissing, SourceUnavailable
from tests.amqp_broker import RabbitMq
from tests.brokers.rigs import Rig, amqp_rig
from tests.proxy import FaultProxy

WAIT_S = 20


async def fetch(source: Source, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    for _ in range(20):
        found += await source.poll(count - len(found), WAIT_S)
        if len(found) == count:
            break
    return found


async def opened(rig: Rig, **more: Any) -> Source:
    source = rig.open(**more)
    await source.open()
    return source


async def channel_of(broker: RabbitMq) -> tuple[Any, Any]:
    connection = await aiormq.connect(f"amqp://{broker.address}")
    return connection, await connection.channel()


async def test_an_outage_is_reported_and_healed_without_a_new_source(amqp_broker: RabbitMq) -> None:
    rig = await amqp_rig(amqp_broker)
    with FaultProxy(("127.0.0.1", amqp_broker.port)) as network:
        source = await opened(rig, url=f"amqp://{network.address}")
        await rig.feed(b"one", b"two")
        one, two = await fetch(source, 2)
        await source.ack([one.receipt])
        network.become("refuses")
        with pytest.raises(SourceUnavailable, match="AMQP at 127"):
            await source.poll(1, WAIT_S)
        with pytest.raises(SourceUnavailable, match="cannot be reached"):
            await source.open()
        network.become("passes")
        await source.open()
        await source.ack([two.receipt])  # of the connection before: the broker redelivers it
        (again,) = await fetch(source, 1)
        assert (again.body, again.deliveries) == (b"two", 2)
        await source.ack([again.receipt])
        assert await source.lag() == 0
        await source.close()


async def test_a_queue_is_made_and_bound_when_the_spec_says_so(amqp_broker: RabbitMq) -> None:
    connection, channel = await channel_of(amqp_broker)
    exchange, queue = f"shop-{uuid.uuid4().hex[:8]}", f"made-{uuid.uuid4().hex[:8]}"
    await channel.exchange_declare(exchange, exchange_type="topic", durable=True)
    spec = {"url": f"amqp://{amqp_broker.address}", "queue": queue}
    with pytest.raises(SourceMissing, match="'create: true'"):
        await open_source("amqp", spec).open()
    with pytest.raises(SourceMissing, match="no exchange 'nowhere'"):
        await open_source("amqp", spec | {"create": True, "exchange": "nowhere"}).open()
    source = open_source("amqp", spec | {"create": True, "exchange": exchange, "routing_key": "order.*"})
    await source.open()
    await source.close()
    await channel.queue_bind(queue, exchange, "order.*")
    properties = aiormq.spec.Basic.Properties(message_id="order-7", content_type="application/json", delivery_mode=2)
    await channel.basic_publish(b"{}", exchange=exchange, routing_key="order.new", properties=properties)
    await source.open()
    (got,) = await fetch(source, 1)
    assert (got.message_id, got.ordering_key) == ("order-7", "order.new")
    assert got.metadata == {
        "exchange": exchange,
        "routing_key": "order.new",
        "redelivered": False,
        "content_type": "application/json",
    }
    await source.close()
    await connection.close()


async def test_the_broker_sends_no_more_than_max_in_flight(amqp_broker: RabbitMq) -> None:
    rig = await amqp_rig(amqp_broker)
    source = await opened(rig, max_in_flight=3)
    await rig.feed(*(str(number).encode() for number in range(5)))
    got = await fetch(source, 3)
    assert await source.poll(10, 0.3) == []
    assert await source.lag() == 2
    await source.ack([got[0].receipt])
    assert [each.body for each in await fetch(source, 1)] == [b"3"]
    await source.close()


async def test_released_messages_go_to_another_consumer(amqp_broker: RabbitMq) -> None:
    rig = await amqp_rig(amqp_broker)
    source, other = await opened(rig), rig.open()
    await rig.feed(b"one", b"two", b"three")
    (one,) = await fetch(source, 1)
    await source.nack([one.receipt], 60)
    await source.release()
    await other.open()
    assert sorted(each.body or b"" for each in await fetch(other, 3)) == [b"one", b"three", b"two"]
    await other.close()  # requeues what it has
    assert len(await fetch(source, 3)) == 3
    await source.close()


async def test_a_terminated_message_reaches_the_dead_letter_exchange_and_counts_when_it_returns(
    amqp_broker: RabbitMq,
) -> None:
    connection, channel = await channel_of(amqp_broker)
    dead, queue = f"dead-{uuid.uuid4().hex[:8]}", f"live-{uuid.uuid4().hex[:8]}"
    await channel.queue_declare(dead, durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    await channel.queue_declare(queue, durable=True, arguments=arguments)
    await channel.basic_publish(b"poison", routing_key=queue)
    url = f"amqp://{amqp_broker.address}"
    source, graveyard = (open_source("amqp", {"url": url, "queue": name}) for name in (queue, dead))
    await source.open()
    (poison,) = await fetch(source, 1)
    await source.term([poison.receipt])
    await graveyard.open()
    (found,) = await fetch(graveyard, 1)
    assert found.body == b"poison"
    assert found.deliveries == 1  # in this queue
    (death,) = found.metadata["x-death"]
    assert (death["queue"], death["count"], death["reason"]) == (queue, 1, "rejected")
    assert dict(found.headers) == {}
    # A message that has died in a queue and is published to it again has been delivered there before.
    headers = {"x-death": [{"queue": queue, "count": 3, "reason": "rejected"}]}
    properties = aiormq.spec.Basic.Properties(headers=headers)
    await channel.basic_publish(b"again", routing_key=queue, properties=properties)
    (again,) = await fetch(source, 1)
    assert again.deliveries == 4
    await source.close()
    await graveyard.close()
    await connection.close()


async def test_an_array_in_a_header_is_several_values_and_hostile_types_are_text(amqp_broker: RabbitMq) -> None:
    rig = await amqp_rig(amqp_broker)
    source = await opened(rig)
    connection, channel = await channel_of(amqp_broker)
    table = {"x-tag": ["red", bytearray(b"\xff"), 7], "n": 1.5, "nested": {"a": [True, None]}}
    properties = aiormq.spec.Basic.Properties(headers=table)
    await channel.basic_publish(b"one", routing_key=rig.spec["queue"], properties=properties)
    (got,) = await fetch(source, 1)
    assert sorted(got.headers, key=lambda pair: pair[0]) == [
        ("n", "1.5"),
        ("nested", '{"a": [true, null]}'),
        ("x-tag", "red"),
        ("x-tag", "\N{REPLACEMENT CHARACTER}"),
        ("x-tag", "7"),
    ]
    await source.close()
    await connection.close()


async def test_a_queue_that_is_deleted_is_reported(amqp_broker: RabbitMq) -> None:
    rig = await amqp_rig(amqp_broker)
    source = await opened(rig)
    assert await source.poll(1, 0.1) == []
    connection, channel = await channel_of(amqp_broker)
    await channel.queue_delete(rig.spec["queue"])
    await connection.close()
    with pytest.raises(SourceUnavailable, match="Was it deleted"):
        await source.poll(1, WAIT_S)
    with pytest.raises(SourceMissing, match="not found"):
        await source.open()


async def test_a_login_is_required_and_never_shown_also_over_tls(amqp_broker: RabbitMq) -> None:
    rig = await amqp_rig(amqp_broker)
    with pytest.raises(SourceUnavailable) as raised:
        await rig.open(user="guest", password="hush").open()
    assert "hush" not in str(raised.value)
    with pytest.raises(SourceUnavailable, match="AMQP at 127"):
        await rig.open(vhost="nowhere").open()
    secured = {"url": f"amqps://{amqp_broker.tls_address}"}
    source = await opened(rig, **secured, user="guest", password="guest", tls={"ca": amqp_broker.certificate["cert"]})
    await rig.feed(b"one")
    assert [each.body for each in await fetch(source, 1)] == [b"one"]
    await source.close()
    with pytest.raises(SourceUnavailable, match="certificate verify failed"):
        await rig.open(**secured).open()
    with pytest.raises(SourceMisconfigured, match="does not encrypt; use amqps://"):
        rig.open(tls={"ca": amqp_broker.certificate["cert"]})


async def test_receipts_of_something_else_are_refused(amqp_broker: RabbitMq) -> None:
    source = await opened(await amqp_rig(amqp_broker))
    for foreign in ("orders.secret", "topic:1", ""):
        with pytest.raises(SourceMissing, match="is not a receipt"):
            await source.ack([foreign])
    await source.close()
