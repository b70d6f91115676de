"""The runtime of a pull subscription: polls, plans, dispatches, and acknowledges what is durable.

Two tasks overlap: one polls, the other dispatches and settles in source order. A message that cannot be dispatched is
not acknowledged, and its source redelivers it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tape.base.process import sleep_until_set
from tape.base.retry import UNLIMITED, Backoff, RetryPolicy
from tape.base.telemetry.metrics import Metrics
from tape.brokers import Delivery, Source
from tape.errors import (
    PayloadTooLarge,
    SourceError,
    SourceMisconfigured,
    SourceMissing,
    SpoolUnavailable,
    TapeError,
)
from tape.model.dispatch_result import RunDispatchResult
from tape.subscriptions import events
from tape.subscriptions.dispatch.forwarder import Forwarder
from tape.subscriptions.document.spec import BatchSpec, Subscription
from tape.subscriptions.event_reporter import EventReporter
from tape.subscriptions.events import SubscriptionEvent, SubscriptionRef
from tape.subscriptions.message import SourceMessage, kept_fields, message_of
from tape.subscriptions.routing import Plan, resolve
from tape.subscriptions.runtime.completions import AwaitedDelivery, Completions, RunOutcomes
from tape.subscriptions.runtime.flow_limits import Allowance, FlowLimiter

log = logging.getLogger(__name__)

# A message that is rejected on so many deliveries is dead-lettered. Without an answer it is retried without limit.
MAX_DELIVERIES = 5
# Backoff of redeliveries and of reconnects: 0.5 s, 1 s, 2 s … 30 s.
BACKOFF = RetryPolicy(max_attempts=UNLIMITED, initial_interval_s=0.5, max_interval_s=30.0, jitter=0.2)
IDLE_S = 0.25
SHORT_S = 0.005
FINISH_S = 1.0
LAG_EVERY_S = 10.0

State = Callable[[], str]


@dataclass
class Counts:
    """Counters of a runtime."""

    received: int = 0
    dispatched: int = 0
    duplicates: int = 0
    spooled: int = 0
    failed: int = 0
    dead: int = 0
    reconnects: int = 0

    @property
    def tried(self) -> int:
        """Messages with any outcome, failures included."""
        return self.dispatched + self.duplicates + self.spooled + self.failed


class Runtime:
    """Runs one pull subscription. `state` returns its lifecycle state and is called before every poll.

    `run` ends after `stop`, or when the state is DRAINING or DEACTIVATED: it stops fetching, finishes the messages in
    flight and releases prefetched ones. It also ends when the source is empty (`until_empty`), after the first fetch
    (`once`), or after `max_messages`.
    """

    def __init__(
        self,
        subscription: Subscription,
        ref: SubscriptionRef,
        source: Source,
        forwarder: Forwarder,
        *,
        reporter: EventReporter,
        metrics: Metrics,
        state: State = lambda: "ACTIVE",
        until_empty: bool = False,
        once: bool = False,
        max_messages: int | None = None,
        backoff: RetryPolicy = BACKOFF,
        on_messages: Callable[[Sequence[SourceMessage]], Awaitable[None]] | None = None,
        outcomes: RunOutcomes | None = None,
    ) -> None:
        self.subscription = subscription
        self.ref = ref
        self.counts = Counts()
        self.is_connected = False
        # Why the source cannot be read now; empty while it is connected.
        self.source_problem = "not connected yet"
        self.source_lag: int | None = None
        self._was_connected = False
        self._is_spool_open = False
        self._source = source
        self._forwarder = forwarder
        self._reporter = reporter
        self._metrics = metrics
        self._state = state
        self._until_empty = until_empty
        self._once = once
        self._max_messages = max_messages
        self._backoff = backoff
        self._on_messages = on_messages
        spec = subscription.spec
        self.limiter = FlowLimiter(spec.max_in_flight, spec.limits.max_dispatch_per_sec)
        # With `ack: on_completion`: the deliveries whose runs go on.
        self._completions: Completions | None = None
        if spec.dispatch.ack == "on_completion" and outcomes is not None:
            self._completions = Completions(subscription.path, source, outcomes, self._settle_ended)
        self._settling = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._fetched: asyncio.Queue[list[Delivery] | None] = asyncio.Queue(maxsize=1)
        self._held_in_a_row = 0
        # Held messages are redelivered no later than probe_after_ms: the next probe is one of them.
        probe_after_s = spec.spool.circuit.probe_after_ms / 1_000
        self._most_in_a_row = 1 + int(math.log2(max(1.0, probe_after_s / max(backoff.initial_interval_s, 0.001))))
        self._unsettled: list[str] = []
        self._source_error: SourceError | None = None
        self._asked_lag_at = 0.0

    def stop(self) -> None:
        """Stop fetching; `run` returns once the fetched messages are settled."""
        self._stopping.set()

    @property
    def waiting(self) -> int:
        """Messages in the spool."""
        return 0 if self._forwarder.spool is None else self._forwarder.spool.items

    @property
    def configuration_problem(self) -> str:
        """Why no run can start and messages are held, such as a playbook that is missing; empty if runs can."""
        return " ".join(self._forwarder.hold.reasons)

    @property
    def spool_problem(self) -> str:
        """Why the spool cannot be used now; empty while it can, and without a spool."""
        if self._forwarder.spool is None:
            return ""
        return self._forwarder.spool_problem or ("" if self._is_spool_open else "not opened yet")

    async def run(self) -> Counts:
        """Run until `stop`. Waits for the end of outages. Raises permanent errors: a wrong setting, or, at the start,
        a stream, topic or subscription that does not exist."""
        if not await self._open_spool():
            await self._forwarder.close()
            return self.counts
        upkeep = asyncio.create_task(self._forwarder.run(), name="tape-forwarder")
        handling = asyncio.create_task(self._dispatch_loop(), name="tape-dispatching")
        fetching = asyncio.create_task(self._fetch(), name="tape-fetching")
        following = asyncio.create_task(self._completions.run()) if self._completions is not None else None
        ending: asyncio.Task[None] | None = None
        try:
            # A failure of one task ends the other.
            await asyncio.wait({fetching, handling}, return_when=asyncio.FIRST_COMPLETED)
            if not handling.done():
                ending = asyncio.create_task(self._fetched.put(None))
                await asyncio.wait({ending, handling}, return_when=asyncio.FIRST_COMPLETED)
            await handling
            await fetching
            if self._completions is not None:
                await self._completions.finish(is_draining=lambda: self._state() == "DRAINING")
        finally:
            self._forwarder.stop()
            tasks = [task for task in (fetching, handling, ending, following) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, upkeep, return_exceptions=True)
            with contextlib.suppress(KeyError):  # a gauge without a runtime would be stale
                self._metrics.source_lag.remove(self.subscription.path)
            await self._source.close()
            await self._reporter.flush()
            await self._forwarder.close()
        return self.counts

    async def _open_spool(self) -> bool:
        """Open the spool, retrying until it is available: its messages go first. False if stopped before that."""
        backoff = Backoff(self._backoff)
        while not self._is_ending:
            try:
                await self._forwarder.start()
                self._is_spool_open, self._forwarder.spool_problem = True, ""
                return True
            except SpoolUnavailable as error:
                self._forwarder.spool_problem = str(error)
                log.warning("%s: spool unavailable, retrying: %s", self.subscription.path, error)
                await backoff.wait_async(stop=self._stopping)
        return False

    # ── fetching ─────────────────────────────────────────────────────────────────────────────────

    async def _fetch(self) -> None:
        if await self._connect(None):
            await self._forwarder.check_readiness()
            while not self._is_ending:
                await self._fetch_some()

    async def _fetch_some(self) -> None:
        if self._state() == "PAUSED":
            await self._release_source()
            await self._idle()
            return
        wanted = self._forwarder.may_fetch()
        if wanted == 0:
            if self._once and self._forwarder.hold.is_held:
                self.stop()
            await self._idle()
            return
        batch = min(self.subscription.spec.runtime.batch, self._left())
        if batch == 0:
            await sleep_until_set(IDLE_S / 10, self._stopping)
            return
        allowance = self.limiter.allow(batch if wanted is None else min(wanted, batch))
        if allowance.has_begun:
            await self._emit_limited(allowance)
        if allowance.batch == 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(IDLE_S):
                    await self.limiter.wait(allowance)
            return
        if self._source_error is not None:
            await self._connect(self._source_error)
            return
        try:
            await self._measure_lag()
            found = await self._polled(allowance.batch, self.subscription.spec.runtime.timeout_ms / 1_000)
        except SourceError as error:
            await self._connect(error)
            return
        if not found:
            await self._reporter.flush()
            await sleep_until_set(SHORT_S, self._stopping)  # avoids a busy loop with a source that does not wait
            if self._until_empty and self.limiter.in_flight == 0:
                self.stop()
            return
        self._count_received(found)
        if self.subscription.spec.dispatch.batch is not None:
            await self._linger(found, self.subscription.spec.dispatch.batch)
        await self._fetched.put(found)
        if self._once:
            self.stop()

    def _count_received(self, found: Sequence[Delivery]) -> None:
        self.counts.received += len(found)
        self.limiter.received(len(found))
        self._metrics.messages_received.labels(self.subscription.spec.source).inc(len(found))

    async def _linger(self, found: list[Delivery], batch: BatchSpec) -> None:
        """Add messages that arrive within `linger_ms`, until the batch is full or a limit is reached."""
        until = time.monotonic() + batch.linger_ms / 1_000
        while (free := min(batch.max - len(found), self._left())) > 0 and not self._is_ending:
            left_s = until - time.monotonic()
            allowed = self.limiter.allow(free).batch
            if left_s <= 0 or allowed == 0 or self._state() == "PAUSED":
                return
            try:
                more = await self._polled(allowed, left_s)
            except SourceError as error:
                self._source_error = error  # what was fetched is dispatched first
                return
            if not more:
                await sleep_until_set(min(SHORT_S, left_s), self._stopping)
            self._count_received(more)
            found += more

    async def _idle(self) -> None:
        """Fetch nothing for 250 ms, but measure the source's lag."""
        try:
            await self._measure_lag()
        except SourceError as error:
            await self._connect(error)
            return
        await sleep_until_set(IDLE_S, self._stopping)

    def _left(self) -> int:
        """How many more messages may be fetched; failed ones count."""
        if self._max_messages is None:
            return self.subscription.spec.runtime.batch
        left = self._max_messages - self.counts.tried
        if left <= 0:
            self.stop()
        return max(left - self.limiter.in_flight, 0)

    async def _polled(self, limit: int, timeout_s: float) -> list[Delivery]:
        """Poll the source. A stop does not wait for an empty source."""
        polling = asyncio.create_task(self._source.poll(limit, timeout_s))
        try:
            await self._wait_or_stop(asyncio.wait({polling}))
            # Accept messages that are being delivered: they would stay leased to this process otherwise.
            await asyncio.wait({polling}, timeout=FINISH_S)
            return polling.result() if polling.done() else []
        finally:
            polling.cancel()

    async def _connect(self, lost: SourceError | None) -> bool:
        """Open the source, retrying until it is available. Emits events for the first failure and for the recovery."""
        began, source, backoff = time.monotonic(), self.subscription.spec.source, Backoff(self._backoff)
        error = lost
        self.is_connected = False
        while not self._is_ending:
            if error is not None:
                self.source_problem = str(error)
                delay = backoff.next_delay(error)
                log.warning("%s: %s", self.subscription.path, error)
                if backoff.failures == 1:
                    await self._reporter.emit([events.source_lost(self.ref, source, str(error))])
                is_just_lost = error is lost and backoff.failures == 1
                await sleep_until_set(0.0 if is_just_lost else delay, self._stopping)
            try:
                await self._source.open()
            except SourceMisconfigured:
                raise
            except SourceMissing as problem:
                if not self._was_connected:
                    raise  # it never existed: a permanent error
                error = problem
                continue
            except SourceError as problem:
                error = problem
                continue
            self.is_connected = self._was_connected = True
            self.source_problem = ""
            await self._settle_delayed()
            if error is not None:
                self.counts.reconnects += 1
                outage_ms = int((time.monotonic() - began) * 1_000)
                await self._reporter.emit([events.source_restored(self.ref, source, outage_ms)])
            return True
        return False

    async def _release_source(self) -> None:
        try:
            await self._source.release()
        except SourceError as error:
            log.warning("%s: %s", self.subscription.path, error)

    async def _measure_lag(self) -> None:
        now = time.monotonic()
        if now - self._asked_lag_at < LAG_EVERY_S:
            return
        self._asked_lag_at = now
        if (lag := await self._source.lag()) is not None:
            self.source_lag = lag
            self._metrics.source_lag.labels(self.subscription.path).set(lag)

    # ── dispatching ──────────────────────────────────────────────────────────────────────────────

    async def _dispatch_loop(self) -> None:
        while (deliveries := await self._fetched.get()) is not None:
            awaited = 0
            try:
                awaited = await self._dispatch_batch(deliveries)
            except TapeError as error:
                log.warning("%s: %d messages are not acknowledged: %s", self.subscription.path, len(deliveries), error)
                await self._settle([], [], {1: [delivery.receipt for delivery in deliveries]})
            finally:
                self.limiter.settled(len(deliveries) - awaited)

    async def _dispatch_batch(self, fetched: list[Delivery]) -> int:
        """Dispatch messages, and settle them. Returns how many are in flight until their runs have ended."""
        deliveries = [each for each in fetched if not self._source.will_redeliver(each.receipt)]
        if not deliveries:
            return 0
        messages = [self._planned(delivery) for delivery in deliveries]
        if self._on_messages is not None:
            await self._on_messages([message for message, _ in messages])
        answers = await self._forwarder.forward(messages, [delivery.redelivery for delivery in deliveries])
        batch = self.subscription.spec.dispatch.batch
        size = self.subscription.spec.dispatch_batch if batch is None else batch.max
        if size > 1 and len(messages) > 1:
            source = self.subscription.spec.source
            self._metrics.batch_dispatches.labels(source).inc(math.ceil(len(messages) / size))
            self._metrics.batch_messages.labels(source).inc(len(messages))
        safe: list[str] = []
        redeliver: defaultdict[int, list[str]] = defaultdict(list)
        dead_lettered: list[str] = []
        awaited: list[AwaitedDelivery] = []
        is_stuck = not any(answer.is_durable for answer in answers)
        self._held_in_a_row = min(self._held_in_a_row + 1, self._most_in_a_row) if is_stuck else 0
        for delivery, (message, plan), answer in zip(deliveries, messages, answers, strict=True):
            self._count(plan, answer)
            if answer.has_run and self._completions is not None:
                awaited.append(AwaitedDelivery(delivery, message, answer.execution_id))
            elif answer.has_run and answer.error and self.subscription.spec.dispatch.ack == "on_completion":
                await self._give_up(delivery, message, answer, dead_lettered, redeliver)
            elif answer.is_durable:
                safe.append(delivery.receipt)
            elif answer.outcome == "rejected" and await self._is_dead_lettered(delivery, message, answer):
                dead_lettered.append(delivery.receipt)
            else:
                times = delivery.deliveries if answer.outcome == "rejected" else self._held_in_a_row
                redeliver[times].append(delivery.receipt)
        await self._settle(safe, dead_lettered, redeliver)
        for each in awaited:
            assert self._completions is not None
            self._completions.add(each)
        return len(awaited)

    async def _settle_ended(
        self, completed: Sequence[AwaitedDelivery], failed: Sequence[tuple[AwaitedDelivery, str]]
    ) -> None:
        """Settle the deliveries whose runs have ended."""
        redeliver: defaultdict[int, list[str]] = defaultdict(list)
        dead_lettered: list[str] = []
        for (delivery, message, execution_id), error in failed:
            answer = RunDispatchResult("started", execution_id, error)
            await self._give_up(delivery, message, answer, dead_lettered, redeliver)
        await self._settle([each.delivery.receipt for each in completed], dead_lettered, redeliver)
        self.limiter.settled(len(completed) + len(failed))

    async def _give_up(
        self,
        delivery: Delivery,
        message: SourceMessage,
        answer: RunDispatchResult,
        dead_lettered: list[str],
        redeliver: defaultdict[int, list[str]],
    ) -> None:
        """Dead-letter a message whose run failed for good, or let its source redeliver it, as the document says."""
        self.counts.failed += 1
        log.warning(
            "%s: the run %s of message %s failed: %s",
            self.subscription.path,
            answer.run_id,
            delivery.message_id,
            answer.error,
        )
        is_last = self.subscription.spec.dispatch.on_failure == "dead_letter" or self._is_last_delivery(delivery)
        if is_last and await self._write_dead_letter(delivery, message, f"run {answer.run_id} failed: {answer.error}"):
            dead_lettered.append(delivery.receipt)
        else:
            redeliver[delivery.deliveries].append(delivery.receipt)

    def _planned(self, delivery: Delivery) -> tuple[SourceMessage, Plan]:
        message = message_of(self.subscription.spec.source, delivery)
        return message, resolve(self.subscription, message)

    def _count(self, plan: Plan, answer: RunDispatchResult) -> None:
        source = self.subscription.spec.source
        self.counts.dispatched += answer.outcome == "started"
        self.counts.duplicates += answer.outcome == "duplicate"
        self.counts.spooled += answer.outcome == "spooled"
        if answer.outcome != "spooled":
            self._metrics.message_executions.labels(source, "dispatched" if answer.is_durable else "error").inc()
        for applied in plan.applied if answer.outcome == "started" else ():
            self._metrics.directives_applied.labels(applied.controls).inc()
        if not answer.is_durable:
            self.counts.failed += 1
        if not answer.is_durable and not self._forwarder.hold.is_held:  # the hold was logged, once
            log.warning("%s: message %s: %s", self.subscription.path, plan.message_id, answer.error or answer.outcome)

    async def _is_dead_lettered(self, delivery: Delivery, message: SourceMessage, answer: RunDispatchResult) -> bool:
        """Dead-letter a message that was rejected too often. Returns whether it can be terminated at the source.

        The event has the whole message. A message that is too large for the journal is terminated only if the source
        keeps terminated messages.
        """
        if not self._is_last_delivery(delivery):
            return False
        return await self._write_dead_letter(delivery, message, f"refused: {answer.error}")

    @staticmethod
    def _is_last_delivery(delivery: Delivery) -> bool:
        return delivery.deliveries >= MAX_DELIVERIES or delivery.redelivery.deliveries_left == 0

    async def _write_dead_letter(self, delivery: Delivery, message: SourceMessage, reason: str) -> bool:
        """Write the event of a dead letter. Returns whether the message can be terminated at the source."""
        fields = kept_fields(message, self.subscription.spec.headers)
        try:
            try:
                await self._reporter.write([self._dead_letter(delivery, reason, fields)])
            except PayloadTooLarge:
                if delivery.deliveries > MAX_DELIVERIES and not self._source.keeps_settled:
                    return False  # emitted before, and still at its source
                rest = {**fields, "data": None, "bytes": len(delivery.body or b"")}
                await self._reporter.write([self._dead_letter(delivery, reason, rest)])
                if not self._source.keeps_settled:
                    return False
        except TapeError as error:
            log.warning(
                "%s: a dead letter cannot be written, the message stays at its source: %s",
                self.subscription.path,
                error,
            )
            return False
        self.counts.dead += 1
        self._metrics.dead_lettered.labels(self.subscription.spec.source).inc()
        return True

    def _dead_letter(self, delivery: Delivery, reason: str, message: dict[str, Any]) -> SubscriptionEvent:
        return events.dead_lettered(
            self.ref,
            delivery.message_id,
            0,
            "",
            delivery.deliveries,
            reason,
            message=message,
            emitter="subscription_runtime",
        )

    async def _settle(self, safe: list[str], dead_lettered: list[str], redeliver: Mapping[int, list[str]]) -> None:
        """Acknowledge, terminate or negatively acknowledge receipts, the last with a backoff by number of failures."""
        try:
            async with self._settling:
                await self._source.ack(safe)
                await self._source.term(dead_lettered)
                for times, receipts in redeliver.items():
                    await self._source.nack(receipts, self._backoff.delay(times))
        except SourceError as error:
            # Acknowledged again after the reconnect; otherwise the source redelivers them and dedup drops them.
            log.warning("%s: %d messages are not settled: %s", self.subscription.path, len(safe), error)
            self._unsettled += safe
            self._source_error = error

    async def _settle_delayed(self) -> None:
        late, self._unsettled, self._source_error = self._unsettled, [], None
        try:
            await self._source.ack(late)
        except SourceError as error:
            log.warning("%s: %d handled messages will be redelivered: %s", self.subscription.path, len(late), error)

    # ── events and waits ─────────────────────────────────────────────────────────────────────────

    async def _emit_limited(self, allowance: Allowance) -> None:
        reason = allowance.reason or ""
        self._metrics.rate_limited.labels(self.subscription.spec.source, reason).inc()
        limits = self.limiter
        await self._reporter.emit(
            [events.rate_limited(self.ref, reason, limits.max_in_flight, limits.max_dispatch_per_sec)]
        )

    @property
    def _is_ending(self) -> bool:
        return self._stopping.is_set() or self._state() in ("DRAINING", "DEACTIVATED")

    async def _wait_or_stop(self, work: Awaitable[Any]) -> None:
        waiting = {asyncio.ensure_future(work), asyncio.ensure_future(self._stopping.wait())}
        _, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
