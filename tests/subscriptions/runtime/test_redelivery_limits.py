"""Sources that stop redelivering: messages are spooled before the source drops them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig

from tape.base.clock import now_ms
from tape.base.retry import RetryPolicy
from tape.base.telemetry.metrics import Metrics
from tape.brokers import open_source
from tape.brokers.pubsub.source import PubSubSource
from tape.model.dispatch_result import RunDispatchResult
from tape.subscriptions.dispatch.assembly import forwarder_of
from tape.subscriptions.document.validator import parse_subscription
from tape.subscriptions.event_reporter import EventReporter
from tape.subscriptions.events import SubscriptionEvent, SubscriptionRef
from tape.subscriptions.routing import Plan
from tape.subscriptions.runtime.runtime import Runtime
from tests.broker_services import NatsServer
from tests.brokers.rigs import nats_server  # noqa: F401 - a fixture

SOON = RetryPolicy(max_attempts=1_000, initial_interval_s=0.01, max_interval_s=0.02)
NUMBER = 20


async def stream(server: NatsServer, name: str, max_deliver: int, max_age_s: float = 0.0) -> Any:
    """A stream with messages, and a consumer that does not deliver for ever."""
    connection = await nats.connect(f"nats://{server.address}")
    jetstream = connection.jetstream()
    await jetstream.add_stream(StreamConfig(name=name, subjects=[f"{name}.>"], max_age=max_age_s))
    config = ConsumerConfig(durable_name="readers", ack_policy=AckPolicy.EXPLICIT, max_deliver=max_deliver, ack_wait=30)
    await jetstream.add_consumer(name, config)
    for number in range(NUMBER):
        await jetstream.publish(f"{name}.orders", json.dumps({"n": number}).encode())
    return connection


class Scene:
    """A runtime on such a stream, with a downstream that is unavailable at first."""

    def __init__(self, server: NatsServer, name: str, **spool: Any) -> None:
        spec = {
            "source": "nats",
            "mode": "pull",
            "url": f"nats://{server.address}",
            "stream": name,
            "consumer": "readers",
            "runtime": {"batch": 5, "timeout_ms": 200},
            "dispatch": {"playbook": "domain/ingest"},
            "spool": spool,
        }
        document = {"kind": "Subscription", "metadata": {"path": "subscriptions/orders"}, "spec": spec}
        subscription = parse_subscription(json.dumps(document))
        self.is_up = False
        self.refuses = False
        self.runs: list[int] = []
        self.emitted: list[SubscriptionEvent] = []
        ref, metrics, reporter = (
            SubscriptionRef("orders", "subscriptions/orders", 7),
            Metrics(),
            EventReporter(self._write),
        )
        self.runtime = Runtime(
            subscription,
            ref,
            open_source("nats", {"url": spec["url"], "stream": name, "consumer": "readers"}),
            forwarder_of(subscription, ref, self._dispatch, reporter.write, metrics=metrics),
            reporter=reporter,
            metrics=metrics,
            backoff=SOON,
        )

    async def _write(self, emitted: Sequence[SubscriptionEvent]) -> None:
        self.emitted += emitted

    async def _dispatch(self, plans: Sequence[Plan]) -> list[RunDispatchResult]:
        if self.refuses:
            return [RunDispatchResult("rejected", error="no such playbook")] * len(plans)
        if not self.is_up:
            return [RunDispatchResult("unavailable")] * len(plans)
        self.runs += [plan.payload["message"]["data"]["n"] for plan in plans]
        return [RunDispatchResult("started", 1)] * len(plans)

    def contexts(self, verb: str) -> list[dict[str, Any]]:
        return [event.context for event in self.emitted if event.event_type == f"subscription.{verb}"]

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(120):
            while not condition():
                await asyncio.sleep(0.01)


async def test_hybrid_keeps_what_nats_would_bring_no_more(nats_server: NatsServer, tmp_path: Path) -> None:  # noqa: F811
    name = "GIVESUP"
    connection = await stream(nats_server, name, max_deliver=3)
    circuit = {"trip_after": 3, "probe_after_ms": 50, "probe_interval_ms": 50}
    scene = Scene(
        nats_server,
        name,
        mode="hybrid",
        backend="local_disk",
        path=str(tmp_path),
        ordering="global",
        hybrid_escalate_after_ms=3_600_000,
        circuit=circuit,
    )
    running = asyncio.create_task(scene.runtime.run())
    try:
        await scene.until(lambda: len(scene.contexts("message.spooled")) == NUMBER)
        async with asyncio.timeout(120):  # until NATS has nothing left to lose
            while (info := await connection.jetstream().consumer_info(name, "readers")).num_ack_pending:
                await asyncio.sleep(0.01)
        assert info.num_pending == 0
        scene.is_up = True
        await scene.until(lambda: len(scene.runs) == NUMBER)
    finally:
        scene.runtime.stop()
        await running
        await connection.close()
    assert sorted(scene.runs) == list(range(NUMBER))
    assert not scene.contexts("message.dropped")


async def test_what_is_refused_for_the_last_time_becomes_a_dead_letter_before_nats_forgets_it(
    nats_server: NatsServer,  # noqa: F811
) -> None:
    name = "REFUSED"
    connection = await stream(nats_server, name, max_deliver=2)
    scene = Scene(nats_server, name, mode="off")
    scene.refuses = True
    running = asyncio.create_task(scene.runtime.run())
    try:
        await scene.until(lambda: len(scene.contexts("message.dead_lettered")) == NUMBER)
    finally:
        scene.runtime.stop()
        await running
        await connection.close()
    dead_letters = scene.contexts("message.dead_lettered")
    assert {dead_letter["attempts"] for dead_letter in dead_letters} == {2}
    assert sorted(dead_letter["message"]["data"]["n"] for dead_letter in dead_letters) == list(range(NUMBER))


@pytest.mark.parametrize(("max_deliver", "max_age_s"), [(4, 3600.0), (-1, 0.0)])
async def test_nats_says_how_long_it_goes_on(nats_server: NatsServer, max_deliver: int, max_age_s: float) -> None:  # noqa: F811
    name = f"PATIENCE{abs(max_deliver)}"
    connection = await stream(nats_server, name, max_deliver, max_age_s)
    source = open_source("nats", {"url": f"nats://{nats_server.address}", "stream": name, "consumer": "readers"})
    await source.open()
    try:
        (first,) = await source.poll(1, 30)
        await source.nack([first.receipt])
        (again,) = await source.poll(1, 30)
        while again.message_id != first.message_id:  # the next message may come before it
            (again,) = await source.poll(1, 30)
    finally:
        await source.close()
        await connection.close()
    assert again.message_id == first.message_id
    left = [delivery.redelivery.deliveries_left for delivery in (first, again)]
    assert left == ([3, 2] if max_deliver > 0 else [None, None])
    expires = first.redelivery.expires_at_ms
    assert (expires is None) == (max_age_s == 0)
    assert expires is None or 0 < expires - now_ms() <= max_age_s * 1_000


class Service:
    """Google's service as far as limits go; one may be refused a look at them."""

    def __init__(self, types: Any, error: Exception | None = None) -> None:
        self._types = types
        self._error = error

    async def get_subscription(self, **_: Any) -> Any:
        if self._error is not None:
            raise self._error
        policy = self._types.DeadLetterPolicy(dead_letter_topic="t", max_delivery_attempts=7)
        return self._types.Subscription(dead_letter_policy=policy, message_retention_duration=timedelta(hours=1))


@pytest.mark.parametrize(
    ("is_allowed", "attempt", "left"), [(True, 6, 1), (True, 7, 0), (True, 0, None), (False, 4, 1), (False, 9, 0)]
)
async def test_pubsub_says_how_long_it_goes_on_and_who_may_not_look_assumes_the_least(
    is_allowed: bool, attempt: int, left: int | None
) -> None:
    from google.api_core.exceptions import PermissionDenied
    from google.pubsub_v1 import types

    source = open_source("pubsub", {"subscription": "projects/p/subscriptions/s", "endpoint": "127.0.0.1:9"})
    assert isinstance(source, PubSubSource)
    source._client = Service(types, None if is_allowed else PermissionDenied("no"))
    await source._read_limits()
    published = datetime(2026, 1, 1, tzinfo=UTC)
    message = types.PubsubMessage(message_id="m", data=b"{}", publish_time=published)
    delivery = source._delivery(types.ReceivedMessage(ack_id="a", message=message, delivery_attempt=attempt))
    expires_at_ms = int(published.timestamp() * 1_000) + 3_600_000 if is_allowed else None
    assert delivery.redelivery == (left, expires_at_ms)
