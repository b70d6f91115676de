"""What SQS has and other brokers have not: visibility time-outs, message groups, redrive policies."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from tape.base.clock import now_ms
from tape.brokers import open_source
from tape.brokers.source import Delivery, Source
from tape.errors import SourceMisconfigured, SourceMissing, SourceUnavailable
from tests.brokers.rigs import Rig, sqs_rig
from tests.proxy import FaultProxy
from tests.sqs_service import LOGIN, REGION, SqsService

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


async def test_a_held_message_stays_invisible_and_that_of_a_dead_process_is_redelivered(
    sqs_service: SqsService,
) -> None:
    rig = await sqs_rig(sqs_service, fifo=False)
    source, other = await opened(rig, visibility_secs=1), await opened(rig, visibility_secs=1)
    await rig.feed(b"held")
    (held,) = await fetch(source, 1)
    until = time.monotonic() + 2.5  # two and a half times its time-out
    while time.monotonic() < until:
        assert await other.poll(1, 0.5) == []
    await source._disconnect()  # as a process that dies: nothing is returned
    (again,) = await fetch(other, 1)
    assert (again.body, again.message_id, again.deliveries) == (b"held", held.message_id, 2)
    await other.ack([again.receipt])
    assert await other.lag() == 0
    await other.close()


async def test_messages_that_were_not_polled_are_returned_at_once(sqs_service: SqsService) -> None:
    rig = await sqs_rig(sqs_service, fifo=False)
    source, other = await opened(rig), await opened(rig)
    assert await source.poll(1, 0.05) == []  # its long poll is still under way
    await rig.feed(b"one")
    await source.close()
    assert [each.body for each in await fetch(other, 1)] == [b"one"]
    await other.close()


async def test_many_messages_are_fetched_and_settled_in_one_go(sqs_service: SqsService) -> None:
    rig = await sqs_rig(sqs_service, fifo=False)
    source = await opened(rig)
    await rig.feed(*(str(number).encode() for number in range(25)))
    found = await fetch(source, 25)
    assert sorted(int(each.body or b"") for each in found) == list(range(25))
    await source.ack([each.receipt for each in found])
    assert await source.lag() == 0
    await source.close()


async def test_a_refused_message_returns_with_the_later_ones_of_its_group(sqs_service: SqsService) -> None:
    rig = await sqs_rig(sqs_service, fifo=True)
    source = await opened(rig)
    queue = rig.spec["queue"]
    for body, group in (("a1", "a"), ("b1", "b"), ("a2", "a"), ("b2", "b")):
        await asyncio.to_thread(sqs_service.send, queue, body, {}, group)
    found = {each.body: each for each in await fetch(source, 4)}
    assert {each.ordering_key for each in found.values()} == {"a", "b"}
    await source.nack([found[b"a1"].receipt])
    assert [source.will_redeliver(found[body].receipt) for body in (b"a1", b"a2", b"b1", b"b2")] == [
        True,
        True,
        False,
        False,
    ]
    await source.ack([found[b"b1"].receipt, found[b"b2"].receipt])
    again = await fetch(source, 2)
    assert [(each.body, each.deliveries) for each in again] == [(b"a1", 2), (b"a2", 2)]
    await source.close()


async def test_the_redrive_policy_and_the_retention_are_redelivery_limits(sqs_service: SqsService) -> None:
    dead = sqs_service.queue()
    arn = sqs_service.client.get_queue_attributes(QueueUrl=sqs_service.url_of(dead), AttributeNames=["QueueArn"])
    policy = {"deadLetterTargetArn": arn["Attributes"]["QueueArn"], "maxReceiveCount": 3}
    queue = sqs_service.queue(RedrivePolicy=json.dumps(policy), MessageRetentionPeriod="600")
    source = open_source("sqs", {"queue": queue, "region": REGION, "endpoint": sqs_service.url, **LOGIN})
    await source.open()
    sqs_service.send(queue, "one", {})
    for left in (2, 1, 0):
        (got,) = await fetch(source, 1)
        assert got.redelivery.deliveries_left == left
        assert got.redelivery.expires_at_ms is not None
        assert 0 < got.redelivery.expires_at_ms - now_ms() <= 600_000
        await source.nack([got.receipt])
    await source.close()


async def test_an_outage_is_reported_and_healed_without_a_new_source(sqs_service: SqsService) -> None:
    rig = await sqs_rig(sqs_service, fifo=False)
    host, _, port = sqs_service.address.partition(":")
    with FaultProxy((host, int(port))) as network:
        source = await opened(rig, endpoint=f"http://{network.address}")
        await rig.feed(b"one")
        (one,) = await fetch(source, 1)
        network.become("refuses")
        for call in (source.ack([one.receipt]), source.poll(1, WAIT_S), source.open()):
            with pytest.raises(SourceUnavailable, match="SQS at 127"):
                await call
        network.become("passes")
        await source.open()
        await source.ack([one.receipt])  # its time-out has not passed
        assert await source.lag() == 0
        await source.close()


async def test_receipts_of_something_else_and_wrong_settings_are_refused(sqs_service: SqsService) -> None:
    rig = await sqs_rig(sqs_service, fifo=False)
    source = await opened(rig)
    with pytest.raises(SourceMissing, match="is not a receipt"):
        await source.ack(["orders.secret"])
    await source.close()
    without_login = {name: value for name, value in rig.spec.items() if name not in LOGIN}
    for spec, problem in (
        (without_login, "the machine's own identity is sent to Amazon alone"),
        (rig.spec | {"password": ""}, "must have both 'user'"),
        (rig.spec | {"endpoint": "127.0.0.1:1"}, "'endpoint' must begin with http"),
        (rig.spec | {"visibility_secs": 43_201}, "'visibility_secs' must be a whole number from 1 to 43,200"),
    ):
        with pytest.raises(SourceMisconfigured, match=problem):
            open_source("sqs", spec)
    # The names that AWS uses; the session token is a token.
    names = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "session_token": "c"}
    open_source("sqs", without_login, names)
