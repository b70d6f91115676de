"""`dispatch.ack: on_completion`: a message is acknowledged when its run has ended, and not before."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import nats
import pytest

from tape.brokers.memory import MemorySource
from tape.model.dispatch_result import RunDispatchResult
from tape.model.run_outcome import RunOutcome
from tape.server.server import Server
from tape.subscriptions.api_client import Control
from tape.subscriptions.runtime.completions import Completions
from tape.subscriptions.runtime.remote import RemoteRuntime
from tests.broker_services import KafkaCluster, NatsServer
from tests.brokers.rigs import Rig, kafka_rig, nats_rig
from tests.conftest import settings_for
from tests.subscriptions.runtime.test_outages import working
from tests.subscriptions.runtime.test_runtime import SPEC, Stage, playing
from tests.subscriptions.runtime.test_runtime import until as until_true
from tests.subscriptions.runtime.test_supervisor import PATH, commands, entries, put, subscribe, until

DISPATCH = {"playbook": "domain/ingest", "execution_pool": "iot", "ack": "on_completion"}
DIVIDE = {"kind": "value", "value": "{{ 1 / (input.n - 7) }}"}
FAILING = {"kind": "Playbook", "workflow": [{"step": "divide", "tool": DIVIDE}]}


@pytest.fixture(scope="module")
def nats_server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture(scope="module")
def kafka_cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster() as cluster:
        yield cluster


@pytest.fixture(params=["nats", "kafka"])
async def rig(request: pytest.FixtureRequest) -> Rig:
    if request.param == "nats":
        return await nats_rig(request.getfixturevalue("nats_server"))
    return await kafka_rig(request.getfixturevalue("kafka_cluster"))


async def unacknowledged(rig: Rig, sent: int) -> int:
    """How many messages the broker would redeliver to another reader."""
    if rig.name == "kafka":
        return sent - await asyncio.to_thread(_committed, rig)
    connection = await nats.connect(rig.spec["url"])
    try:
        info = await connection.jetstream().consumer_info(rig.spec["stream"], rig.spec["consumer"])
        return int(info.num_ack_pending or 0) + int(info.num_pending or 0)
    finally:
        await connection.close()


def _committed(rig: Rig) -> int:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": rig.spec["brokers"], "group.id": rig.spec["group"]})
    try:
        partitions = consumer.list_topics(rig.spec["topic"], timeout=60).topics[rig.spec["topic"]].partitions
        positions = [TopicPartition(rig.spec["topic"], number) for number in partitions]
        return sum(max(each.offset, 0) for each in consumer.committed(positions, timeout=60))
    finally:
        consumer.close()


async def test_messages_are_acknowledged_when_their_runs_have_ended(server: Server, rig: Rig) -> None:
    await subscribe(server, rig, dispatch=DISPATCH)
    for number in range(4):
        await rig.feed(json.dumps({"n": number}).encode())

    async def have_begun() -> bool:
        return len(await commands(server)) == 4

    async def are_acknowledged() -> bool:
        return await unacknowledged(rig, 4) == 0

    await until(have_begun)
    assert await unacknowledged(rig, 4) == 4
    async with working(server, "iot"):
        await until(are_acknowledged)
    assert len(await commands(server)) == 4


async def test_a_message_whose_run_fails_is_a_dead_letter_and_not_redelivered(server: Server, rig: Rig) -> None:
    await subscribe(server, rig, dispatch=DISPATCH)
    await put(server, "domain/ingest", FAILING)
    async with working(server, "iot"):
        await rig.feed(b'{"n": 7}')
        await until(lambda: entries(server, "message.dead_lettered"))
        (dead,) = await entries(server, "message.dead_lettered")
        assert dead["message"]["data"] == {"n": 7}
        assert "failed: " in dead["reason"]

        async def is_settled() -> bool:
            return await unacknowledged(rig, 1) == 0

        await until(is_settled)
    assert len(await commands(server)) == 1


async def test_no_more_than_max_in_flight_runs_are_awaited(server: Server, nats_server: NatsServer) -> None:
    rig = await nats_rig(nats_server)
    await subscribe(server, rig, dispatch=DISPATCH, limits={"max_in_flight": 2})
    for number in range(5):
        await rig.feed(json.dumps({"n": number}).encode())
    await until(lambda: entries(server, "rate_limited"))
    assert len(await commands(server)) == 2

    async def all_begun() -> bool:
        return len(await commands(server)) == 5

    async with working(server, "iot"):
        await until(all_begun)


async def test_a_remote_runtime_acknowledges_on_completion_too(store_url: str, nats_server: NatsServer) -> None:
    rig = await nats_rig(nats_server)
    async with Server(settings_for(store_url, internal_token="t0ken")) as server:
        await subscribe(server, rig, dispatch=DISPATCH, runtime={"timeout_ms": 200})
        await rig.feed(b'{"n": 1}')
        control = Control(f"http://{server.http_address}", "t0ken")
        async with _running(RemoteRuntime(PATH, control, "elsewhere", keeps_active=True)):

            async def has_begun() -> bool:
                return len(await commands(server)) == 1

            async def is_acknowledged() -> bool:
                return await unacknowledged(rig, 1) == 0

            await until(has_begun)
            assert not await is_acknowledged()
            async with working(server, "iot"):
                await until(is_acknowledged)


@contextlib.asynccontextmanager
async def _running(runtime: RemoteRuntime) -> AsyncIterator[None]:
    task = asyncio.create_task(runtime.run())
    try:
        yield
    finally:
        runtime.stop()
        await task


# ── without a server ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("on_failure", ["dead_letter", "nack"])
async def test_a_run_that_failed_in_this_process_is_settled_as_the_document_says(on_failure: str) -> None:
    stage = Stage(dispatch=SPEC["dispatch"] | {"ack": "on_completion", "on_failure": on_failure})
    stage.answer = lambda plan: RunDispatchResult("started", len(stage.plans), "boom", answered=())
    stage.source.publish(b'{"n": 1}')
    async with playing(stage):
        await until_true(lambda: "message.dead_lettered" in stage.verbs)
        await until_true(lambda: stage.source.unsettled == 0)
    assert len(stage.plans) == (1 if on_failure == "dead_letter" else 5)


async def test_the_redelivery_time_is_renewed_while_a_run_goes_on() -> None:
    class Source(MemorySource):
        renew_every_s = 0.0

        def __init__(self) -> None:
            super().__init__()
            self.renewed: list[str] = []

        async def renew(self, receipts: Sequence[str]) -> None:
            self.renewed += receipts

    class Outcomes:
        found: Mapping[int, RunOutcome] = {}

        async def read(self, execution_ids: Sequence[int]) -> Mapping[int, RunOutcome]:
            return {each: self.found.get(each, RunOutcome()) for each in execution_ids}

    settled: list[Any] = []

    async def settle(*ended: Any) -> None:
        settled.append(ended)

    source, outcomes = Source(), Outcomes()
    stage = Stage(dispatch=SPEC["dispatch"] | {"ack": "on_completion"})
    stage.runtime._source = stage.source = source
    completions = stage.runtime._completions = Completions("subscriptions/orders", source, outcomes, settle)
    source.publish(b"{}")
    following = asyncio.create_task(completions.run())
    async with playing(stage):
        await until_true(lambda: len(source.renewed) >= 2)
        assert (len(completions), settled) == (1, [])
        outcomes.found = {1: RunOutcome("completed")}
        await until_true(lambda: len(settled) == 1)
    following.cancel()
    assert len(completions) == 0
