"""Circuits of a subscription on Spark: the stream reads nothing while runs find their downstream unavailable."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from tape.base.telemetry.metrics import Metrics
from tape.client import AsyncTapeClient
from tape.pipeline.downstream_circuits import DownstreamCircuits
from tape.pipeline.job_context import JobContext
from tape.pipeline.jobs.subscription import StreamOptions, SubscriptionStream
from tape.server.server import Server
from tape.subscriptions.api_client import Control
from tape.subscriptions.dispatch.http import ServerDownstreams
from tape.subscriptions.document.validator import parse_subscription
from tape.subscriptions.events import SubscriptionEvent, subscription_ref
from tests.conftest import settings_for
from tests.subscriptions.dispatch.test_outcomes import PATH, Desk

DOCUMENT = {
    "kind": "Subscription",
    "metadata": {"path": PATH},
    "spec": {
        "source": "kafka",
        "mode": "pull",
        "brokers": "127.0.0.1:1",
        "topic": "t",
        "group": "g",
        "runtime": {"target": "spark"},
        "dispatch": {"playbook": "domain/order", "execution_pool": "shared"},
        "spool": {
            "circuit": {
                "trip_after": 2,
                "probe_after_ms": 100,  # short: two transitions, not a long outage, are tested
                "downstream": [{"name": "orders", "type": "passive"}],
            }
        },
    },
}


class Job:
    """The circuits of a job, and the desk at which its runs are carried out."""

    def __init__(self, server: Server, client: AsyncTapeClient) -> None:
        self.desk = Desk(server, client, keeps=False)
        self.emitted: list[SubscriptionEvent] = []
        self.control = Control(f"http://{server.http_address}", "t0ken")
        self.subscription = parse_subscription(json.dumps(DOCUMENT))
        downstreams = ServerDownstreams(self.control, PATH)
        ref = subscription_ref(PATH, 7)
        self.circuits = DownstreamCircuits(self.subscription, ref, downstreams, self.emitted.extend)

    def stream(self, context: JobContext, *, follow: bool) -> Any:
        control: Any = SimpleNamespace(state="ACTIVE", path=PATH)
        options, none = StreamOptions("x", follow=follow), Any
        return SubscriptionStream(none, self.subscription, control, self.circuits, none, context, options, Metrics())

    async def until_open(self, *, is_open: bool) -> None:
        async with asyncio.timeout(60):
            while bool(self.circuits.open) != is_open:
                await asyncio.sleep(0.05)


@pytest.fixture
async def job(store_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Job]:
    monkeypatch.setenv("TAPE_TOKEN", "t0ken")
    async with Server(settings_for(store_url, internal_token="t0ken")) as server:
        async with AsyncTapeClient(f"tape://{server.grpc_address}") as client:
            job = Job(server, client)
            job.circuits.start()
            try:
                yield job
            finally:
                await asyncio.to_thread(job.circuits.close)


async def test_the_stream_waits_while_a_downstream_is_unavailable_and_goes_on_when_it_answers(job: Job) -> None:
    desk = job.desk
    await desk.start("a", "b")
    async with asyncio.timeout(60):
        while job.circuits._feed._known is None:
            await asyncio.sleep(0.05)
    await desk.settle(unavailable=list((await desk.claim()).values()))
    await job.until_open(is_open=True)
    context = JobContext("subscription", quiet=True)
    waiting = asyncio.create_task(asyncio.to_thread(job.stream(context, follow=True)._wait_for_downstreams))
    async with asyncio.timeout(60):
        while not (probed := await desk.claim()):  # one of them is let go as the probe
            await asyncio.sleep(0.05)
    assert (len(probed), waiting.done()) == (1, False)
    await desk.settle(completed=list(probed.values()), answered="orders")
    await waiting
    assert job.circuits.open == ()
    assert _waits(context) == 1
    async with asyncio.timeout(60):
        while "subscription.circuit.closed" not in [each.event_type for each in job.emitted]:
            await asyncio.sleep(0.05)


async def test_a_job_that_does_not_follow_stops_at_an_open_circuit(job: Job) -> None:
    await job.desk.start("a", "b")
    async with asyncio.timeout(60):
        while job.circuits._feed._known is None:
            await asyncio.sleep(0.05)
    await job.desk.settle(unavailable=list((await job.desk.claim()).values()))
    await job.until_open(is_open=True)
    context = JobContext("subscription", quiet=True)
    await asyncio.to_thread(job.stream(context, follow=False)._wait_for_downstreams)
    assert context.is_stopping


def _waits(context: JobContext) -> float:
    """How often the job has counted a wait for a downstream."""
    return sum(
        sample.value
        for metric in context.registry.collect()
        for sample in metric.samples
        if "waits for a downstream" in sample.labels.values() and sample.name.endswith("_total")
    )
