"""Messages become runs, and are acknowledged only then."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tape.base.retry import RetryPolicy
from tape.base.telemetry.metrics import Metrics
from tape.brokers.memory import MemorySource
from tape.errors import PayloadTooLarge, ServerUnreachable, SourceMisconfigured, SourceMissing, SpoolUnavailable
from tape.model.dispatch_result import RunDispatchResult
from tape.subscriptions.dispatch.assembly import forwarder_of
from tape.subscriptions.document.validator import parse_subscription
from tape.subscriptions.event_reporter import EventReporter
from tape.subscriptions.events import SubscriptionEvent, SubscriptionRef
from tape.subscriptions.routing import Plan
from tape.subscriptions.runtime import runtime
from tape.subscriptions.runtime.runtime import MAX_DELIVERIES, Runtime

SOON = RetryPolicy(max_attempts=1_000, initial_interval_s=0.01, max_interval_s=0.02)
SPEC: dict[str, Any] = {
    "source": "nats",
    "mode": "pull",
    "url": "nats://nowhere",
    "stream": "S",
    "consumer": "c",
    "runtime": {"batch": 10, "timeout_ms": 50},
    "dispatch": {"playbook": "domain/ingest"},
}


class Stage:
    """A runtime on an in-memory source, with a dispatch whose answers the test sets."""

    def __init__(self, **spec: Any) -> None:
        document = {"kind": "Subscription", "metadata": {"path": "subscriptions/orders"}, "spec": SPEC | spec}
        self.subscription = parse_subscription(json.dumps(document))
        self.source = MemorySource()
        self.plans: list[Plan] = []
        self.emitted: list[SubscriptionEvent] = []
        self.state = "ACTIVE"
        self.answer: Callable[[Plan], RunDispatchResult] = lambda plan: RunDispatchResult("started", len(self.plans))
        self.gate = asyncio.Event()
        self.gate.set()
        self.can_emit = True
        self.max_bytes = 1 << 20
        ref = SubscriptionRef("orders", "subscriptions/orders", 7)
        self.metrics = Metrics()
        reporter = EventReporter(self._write, "here")
        self.runtime = Runtime(
            self.subscription,
            ref,
            self.source,
            forwarder_of(self.subscription, ref, self._dispatch, reporter.emit, metrics=self.metrics),
            reporter=reporter,
            metrics=self.metrics,
            state=self._look,
            backoff=SOON,
        )
        self.looks = self.connects = 0
        self._open, self.source.open = self.source.open, self._connect  # type: ignore[method-assign]

    def _look(self) -> str:
        self.looks += 1
        return self.state

    async def _connect(self) -> None:
        self.connects += 1
        await self._open()

    async def _write(self, emitted: Sequence[SubscriptionEvent]) -> None:
        if not self.can_emit:
            raise ServerUnreachable("away")
        if any(len(json.dumps(event.context)) > self.max_bytes for event in emitted):
            raise PayloadTooLarge("payload_json has too many bytes")
        self.emitted += emitted

    async def _dispatch(self, plans: Sequence[Plan]) -> list[RunDispatchResult]:
        await self.gate.wait()
        found = []
        for plan in plans:
            self.plans.append(plan)
            found.append(self.answer(plan))
        return found

    @property
    def verbs(self) -> list[str]:
        return [event.event_type.removeprefix("subscription.") for event in self.emitted]

    @property
    def bodies(self) -> list[Any]:
        return [plan.payload["message"]["data"] for plan in self.plans]


@asynccontextmanager
async def playing(stage: Stage) -> AsyncIterator[asyncio.Task[Any]]:
    task = asyncio.create_task(stage.runtime.run())
    try:
        yield task
    finally:
        stage.gate.set()
        stage.runtime.stop()
        await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), 120)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.005)


async def test_messages_become_plans_in_their_order_and_are_gone() -> None:
    stage = Stage()
    for number in range(25):
        stage.source.publish(str(number).encode(), [("X-Number", str(number))])
    async with playing(stage):
        await until(lambda: stage.source.unsettled == 0)
    assert stage.bodies == list(range(25))
    assert stage.plans[3].payload["message"]["headers"] == {"x-number": "3"}
    assert (stage.runtime.counts.received, stage.runtime.counts.dispatched) == (25, 25)
    assert b'tape_subscription_messages_received_total{source="nats"} 25.0' in stage.metrics.render()


async def test_the_lag_of_a_source_is_reported_while_its_runtime_runs() -> None:
    stage = Stage()
    async with playing(stage):
        await until(lambda: b"tape_subscription_source_lag{" in stage.metrics.render())
    assert b"tape_subscription_source_lag{" not in stage.metrics.render()


@pytest.mark.parametrize("why", ["paused", "circuit open"])
async def test_the_lag_of_a_source_is_reported_while_nothing_is_fetched(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "LAG_EVERY_S", 0.0)
    stage = Stage(spool={"mode": "off", "circuit": {"trip_after": 1, "probe_after_ms": 3_600_000}})
    stage.answer = lambda plan: RunDispatchResult("unavailable")
    if why == "paused":
        stage.state = "PAUSED"
    else:
        stage.source.publish(b"0")
    async with playing(stage):
        if why == "circuit open":
            await until(lambda: "circuit.opened" in stage.verbs)
        for number in range(7):
            stage.source.publish(str(number).encode())
        wanted = stage.source.unsettled
        line = f'tape_subscription_source_lag{{subscription="subscriptions/orders"}} {wanted}.0'
        await until(lambda: line.encode() in stage.metrics.render())


async def test_nothing_is_acknowledged_before_its_run_is_durable() -> None:
    stage = Stage()
    stage.gate.clear()
    stage.source.publish(b"1")
    async with playing(stage):
        await until(lambda: stage.runtime.counts.received == 1)
        assert stage.source.unsettled == 1
        stage.gate.set()
        await until(lambda: stage.source.unsettled == 0)


async def test_an_unavailable_dispatch_is_retried_until_it_succeeds() -> None:
    stage = Stage(spool={"circuit": {"trip_after": 1000}})
    stage.answer = lambda plan: (
        RunDispatchResult("unavailable", error="no server")
        if len(stage.plans) < 20
        else RunDispatchResult("started", 1)
    )
    stage.source.publish(b"1")
    async with playing(stage):
        await until(lambda: stage.source.unsettled == 0)
    assert len(stage.plans) == 20  # far more often than a message that is refused
    assert "message.dead_lettered" not in stage.verbs
    assert (stage.runtime.counts.dispatched, stage.runtime.counts.failed) == (1, 19)


async def test_a_message_rejected_too_often_is_a_dead_letter_with_the_whole_message() -> None:
    stage = Stage()
    stage.answer = lambda plan: RunDispatchResult(
        *(
            ("rejected", 0, "Playbook not found: domain/ingest")
            if plan.payload["message"]["data"] == 1
            else ("started", 1)
        )
    )
    stage.source.publish(b"1", [("X-Kind", "poison")])
    stage.source.publish(b"2")
    async with playing(stage):
        await until(lambda: stage.source.unsettled == 0)
    assert stage.bodies.count(1) == MAX_DELIVERIES
    assert stage.bodies.count(2) == 1
    (dead_letter,) = [event for event in stage.emitted if event.event_type == "subscription.message.dead_lettered"]
    assert dead_letter.context["attempts"] == MAX_DELIVERIES
    assert "Playbook not found" in dead_letter.context["reason"]
    assert dead_letter.context["message"]["data"] == 1
    assert dead_letter.context["message"]["headers"] == {"x-kind": "poison"}
    assert (dead_letter.ref.subscription_id, dead_letter.worker_id) == (7, "here")


async def test_a_message_stays_if_its_dead_letter_cannot_be_written() -> None:
    stage = Stage()
    stage.answer = lambda plan: RunDispatchResult("rejected", error="no")
    stage.can_emit = False
    stage.source.publish(b"1")
    async with playing(stage):
        await until(lambda: len(stage.plans) > MAX_DELIVERIES + 3)
        assert stage.source.unsettled == 1
        stage.can_emit = True
        await until(lambda: stage.source.unsettled == 0)
    assert stage.verbs == ["message.dead_lettered"]


async def test_a_message_too_large_for_the_journal_is_terminated_only_if_the_source_keeps_it() -> None:
    for keeps_settled in (True, False):
        stage = Stage()
        stage.answer = lambda plan: RunDispatchResult("rejected", error="payload_json has too many bytes")
        stage.max_bytes = 1_000
        stage.source.keeps_settled = keeps_settled
        stage.source.publish(b'"' + b"x" * 5_000 + b'"')
        async with playing(stage):
            await until(lambda stage=stage: len(stage.plans) > MAX_DELIVERIES + 2 or stage.source.unsettled == 0)
        (dead_letter,) = stage.emitted
        assert (dead_letter.context["message"]["data"], dead_letter.context["message"]["bytes"]) == (None, 5_002)
        assert stage.source.unsettled == (0 if keeps_settled else 1)


async def test_a_stream_that_was_never_there_is_not_waited_for() -> None:
    stage = Stage()

    async def missing() -> None:
        raise SourceMissing("subscription[nats]: stream 'S' not found.")

    stage.source.open = missing  # type: ignore[method-assign]
    with pytest.raises(SourceMissing):
        await asyncio.wait_for(stage.runtime.run(), 120)


async def test_an_outage_of_the_source_is_reported_once_and_nothing_is_lost() -> None:
    stage = Stage()
    stage.source.is_down = True
    stage.source.publish(b"1")
    async with playing(stage):
        await until(lambda: "source.lost" in stage.verbs)
        stage.source.is_down = False
        await until(lambda: stage.source.unsettled == 0)
        stage.source.is_down = True
        stage.source.publish(b"2")
        await until(lambda: stage.verbs.count("source.lost") == 2)
        failed = stage.connects
        await until(lambda: stage.connects >= failed + 2)  # further failed attempts emit no event
        stage.source.is_down = False
        await until(lambda: stage.source.unsettled == 0)
    assert stage.verbs == ["source.lost", "source.restored"] * 2
    assert stage.bodies == [1, 2]
    assert stage.runtime.counts.reconnects == 2


async def test_a_message_that_cannot_be_acknowledged_is_redelivered() -> None:
    stage = Stage()
    stage.gate.clear()
    stage.source.publish(b"1")
    async with playing(stage):
        await until(lambda: stage.runtime.counts.received == 1)
        stage.source.is_down = True  # between fetch and ack
        stage.gate.set()
        await until(lambda: stage.plans)
        stage.source.is_down = False
        await until(lambda: stage.source.unsettled == 0)
    assert stage.bodies == [1, 1]


async def test_events_that_cannot_be_written_wait_in_order() -> None:
    stage = Stage()
    stage.can_emit = False
    stage.source.is_down = True
    async with playing(stage):
        await until(lambda: stage.runtime._reporter._waiting)
        stage.source.is_down = False
        stage.source.publish(b"1")
        await until(lambda: stage.source.unsettled == 0)
        assert stage.emitted == []
        stage.can_emit = True
        await until(lambda: stage.verbs == ["source.lost", "source.restored"])


async def test_a_pause_stops_fetching_and_a_resume_goes_on() -> None:
    stage = Stage()
    stage.state = "PAUSED"
    stage.source.publish(b"1")
    async with playing(stage):
        await until(lambda: stage.runtime.is_connected)
        looked = stage.looks
        await until(lambda: stage.looks >= looked + 3)
        assert stage.plans == []
        stage.state = "ACTIVE"
        await until(lambda: stage.source.unsettled == 0)


@pytest.mark.parametrize("how", ["stop", "DRAINING", "DEACTIVATED"])
async def test_an_end_finishes_what_was_fetched_and_fetches_no_more(how: str) -> None:
    stage = Stage(runtime={"batch": 2, "timeout_ms": 50})
    stage.gate.clear()
    for number in range(20):
        stage.source.publish(str(number).encode())
    async with playing(stage) as task:
        await until(lambda: stage.runtime.counts.received >= 2)
        if how == "stop":
            stage.runtime.stop()
        else:
            stage.state = how
        stage.gate.set()
        counts = await asyncio.wait_for(task, 120)
    assert counts.dispatched == counts.received < 20
    assert stage.source.unsettled == 20 - counts.dispatched


async def test_limits_hold_messages_at_their_source_and_are_reported_when_they_begin() -> None:
    stage = Stage(limits={"max_in_flight": 3})
    stage.gate.clear()
    for number in range(10):
        stage.source.publish(str(number).encode())
    async with playing(stage):
        await until(lambda: "rate_limited" in stage.verbs)
        assert stage.runtime.limiter.in_flight == 3
        stage.gate.set()
        await until(lambda: stage.source.unsettled == 0)
    assert stage.bodies == list(range(10))
    assert stage.emitted[0].context["reason"] == "max_in_flight"


async def test_a_bounded_drain_ends_when_the_source_is_empty() -> None:
    stage = Stage()
    stage.runtime._until_empty = True
    for number in range(25):
        stage.source.publish(str(number).encode())
    counts = await asyncio.wait_for(stage.runtime.run(), 120)
    assert (counts.dispatched, stage.source.unsettled) == (25, 0)


async def test_settings_that_cannot_work_end_it_at_once() -> None:
    stage = Stage()

    async def refuse() -> None:
        raise SourceMisconfigured("subscription[nats] requires 'stream'.")

    stage.source.open = refuse  # type: ignore[method-assign]
    with pytest.raises(SourceMisconfigured):
        await asyncio.wait_for(stage.runtime.run(), 120)


async def test_what_a_source_delivers_again_by_itself_overtakes_nothing() -> None:
    stage = Stage()
    stage.source.will_redeliver = lambda receipt: receipt == "2"  # type: ignore[method-assign]
    for number in range(3):
        stage.source.publish(str(number).encode())
    async with playing(stage):
        await until(lambda: stage.source.unsettled == 1)
    assert stage.bodies == [0, 2]


async def test_a_spool_that_cannot_be_reached_at_the_start_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    start, tries = stage.runtime._forwarder.start, iter(range(3))

    async def reluctant() -> None:
        for _ in tries:
            raise SpoolUnavailable("no such bucket")
        await start()

    monkeypatch.setattr(stage.runtime._forwarder, "start", reluctant)
    stage.source.publish(b"0")
    async with playing(stage):
        await until(lambda: stage.source.unsettled == 0)
    assert stage.bodies == [0]


async def test_a_message_that_waits_for_a_circuit_rests_no_longer_than_the_circuit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(spool={"mode": "off", "circuit": {"trip_after": 1, "probe_after_ms": 20}})
    monkeypatch.setattr(stage.runtime, "_backoff", RetryPolicy(initial_interval_s=0.01, max_interval_s=60, jitter=0))
    rests: list[float] = []
    nack = stage.source.nack

    async def noted(receipts: Sequence[str], delay_s: float = 0.0) -> None:
        rests.extend([delay_s] if receipts else [])
        await nack(receipts, delay_s)

    monkeypatch.setattr(stage.source, "nack", noted)
    stage.answer = lambda plan: RunDispatchResult(
        "unavailable" if len(stage.plans) < 12 else "started", len(stage.plans)
    )
    stage.source.publish(b"0")
    async with playing(stage):
        await until(lambda: stage.source.unsettled == 0)
    assert len(rests) >= 11
    assert max(rests) <= 0.02
