"""`subscription`: the messages of a source as a stream of Spark, each of them one run.

Executors read stretches of offsets, plan them as the live runtime does, and hand them over; runs and the memory of what
was taken are one transaction. So the checkpoint only says where to go on: without it, the store knows that, too.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.errors import PySparkException

from tape.archive.location import resolve_url
from tape.base.owner import process_name
from tape.base.telemetry.metrics import Metrics
from tape.brokers.log import Log, open_log
from tape.errors import OrderNotKept, ServerUnreachable, SourceError, TapeError
from tape.pipeline.checkpoints import Checkpoint, begun_with
from tape.pipeline.failures import raised_in
from tape.pipeline.job_context import Running
from tape.pipeline.messages import NAME
from tape.pipeline.options import resolve_store
from tape.pipeline.outlets import ServerOutlet, StoreOutlet
from tape.pipeline.stream_progress import listening, wait_for_end
from tape.pipeline.subscription_control import PATIENCE, Steering
from tape.pipeline.subscription_task import REPORT, Report, Taking, total
from tape.subscriptions import events
from tape.subscriptions.api_client import Control
from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.runtime.flow_limits import MIN_WAIT_S, FlowLimiter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

VERSION = 1
BATCH_MESSAGES = 50_000
# How often a source is asked for news.
TRIGGER = "250 milliseconds"
# Without `follow`, a server that is away is given so many tries.
TRIES = 4
# Spark gives a Python process ten seconds to start, which on a busy machine is not always enough.
_NOT_STARTED = "Python worker failed to connect back"


class How(msgspec.Struct, frozen=True):
    """How a subscription runs: where it remembers, how much it reads at once, where its runs are written.

    With `store` executors write into the store itself; otherwise the server does it for them.
    """

    checkpoint: str
    follow: bool = False
    store: str = ""
    batch_messages: int = BATCH_MESSAGES
    skip_lost: bool = False


class Halted(Exception):
    """The job was told to stop while a micro-batch waited; the next start takes it again."""


def run_subscription(
    spark: SparkSession, url: str, token: str, path: str, running: Running, how: How, metrics: Metrics | None = None
) -> Report:
    """Make runs of what a source has, and with `follow` of what comes, until told to stop; what was done."""
    control = Control(url, token)
    worker_id = process_name()
    steering = Steering(control, path, running, worker_id=worker_id, follows=how.follow)
    opener = partial(StoreOutlet, resolve_store(how.store)) if how.store else partial(ServerOutlet, url, token)
    try:
        subscription = steering.begin()
        taking = Taking(subscription, steering.about, opener)
        return Streamed(spark, subscription, steering, taking, running, how, metrics or Metrics(running.registry)).run()
    finally:
        steering.end()
        control.close()


class Streamed:
    """One subscription at work. Outages of its broker and of its server are waited for, and told."""

    def __init__(
        self,
        spark: SparkSession,
        subscription: Subscription,
        steering: Steering,
        taking: Taking,
        running: Running,
        how: How,
        metrics: Metrics,
    ) -> None:
        self._spark = spark
        self._subscription = subscription
        self._spec = spec = subscription.spec
        self._steering = steering
        self._taking = taking
        self._running = running
        self._how = how
        self._metrics = metrics
        self._governor = FlowLimiter(spec.max_in_flight, spec.limits.max_dispatch_per_sec)
        limits = (how.batch_messages, spec.max_in_flight, spec.limits.max_dispatch_per_sec)
        self._at_once = min(limit for limit in limits if limit is not None)
        self._done = Report()
        self._failure: TapeError | None = None
        self._log: Log | None = None
        self._lost_at: float | None = None
        self._is_slowed = False

    def run(self) -> Report:
        """Stream until the end, or until told to stop."""
        checkpoint, attempt, starts = resolve_url(self._how.checkpoint), 0, 0
        source, topic = self._spec.source, self._spec.topic or self._spec.stream
        begun_with(
            checkpoint,
            Checkpoint("subscription", "", VERSION, {"path": self._steering.path, "source": source, "reads": topic}, 0),
        )
        while not self._running.is_stopping:
            try:
                self._stream(checkpoint)
                break
            except SourceError as error:
                if not error.retryable or not self._how.follow:
                    raise
                attempt = 1 if self._lost_at is None else attempt + 1
                self._say_lost(error)
                self._running.wait(PATIENCE.delay(attempt))
            except PySparkException as error:
                starts += 1
                if _NOT_STARTED not in str(error) or starts == TRIES:
                    raise
                self._running.noted("times that Spark's Python did not start", 1)
        return self._done

    def _stream(self, checkpoint: str) -> None:
        held = self._steering.options(self._spec)
        self._log = open_log(self._spec.source, held["connection"], held["secrets"])
        try:
            self._check_order()
            writer = self._writer(held, checkpoint)
            with listening(self._spark, self._running, self._heard) as listener:
                query = writer.start()
                try:
                    wait_for_end(query, self._running)
                except PySparkException as error:
                    self._explain(error, query)
                listener.hear_out(query)
        finally:
            self._log.close()

    def _writer(self, held: dict[str, Any], checkpoint: str) -> DataStreamWriter:
        options = {name: _text(value) for name, value in held["connection"].items()}
        options |= {
            "source": self._spec.source,
            "secretSettings": msgspec.json.encode(held["secrets"]).decode(),
            "startingOffsets": msgspec.json.encode(self._steering.taken()).decode(),
            "maxOffsetsPerTrigger": str(self._at_once),
            "failOnDataLoss": str(not self._how.skip_lost).lower(),
        }
        if self._spec.spool.ordering == "none":
            options["minPartitions"] = str(self._spark.sparkContext.defaultParallelism)
        rows = self._spark.readStream.format(NAME).options(**options).load()
        writer = rows.writeStream.foreachBatch(self._take).option("checkpointLocation", checkpoint)
        writer = writer.queryName(self._steering.path)
        return writer.trigger(processingTime=TRIGGER) if self._how.follow else writer.trigger(availableNow=True)

    def _check_order(self) -> None:
        assert self._log is not None
        parts = self._log.extents()
        if self._spec.spool.ordering == "global" and len(parts) > 1:
            raise OrderNotKept(
                f"{self._steering.path}: spool.ordering is 'global', and topic {self._spec.topic!r} has {len(parts)}"
                " partitions, between which there is no order. Use 'per_key', or a topic with one partition."
            )

    def _explain(self, error: PySparkException, query: StreamingQuery) -> None:
        """Raise what a query ended with, unless it was told to stop."""
        failure, self._failure = self._failure, None
        if failure is None and self._running.is_stopping and Halted.__name__ in str(error):
            return
        raise failure or raised_in(error) or error

    # ── one micro-batch ──────────────────────────────────────────────────────────────────────────

    def _take(self, batch: DataFrame, number: int) -> None:
        self._hold()
        attempt = 0
        while True:
            report = self._attempt(batch)
            self._count(report)
            if not report.stuck:
                return
            attempt += 1
            self._running.noted("times waiting", 1, report.stuck)
            if not self._how.follow and attempt == TRIES:
                self._failure = ServerUnreachable(f"Nothing more can be handed over: {report.stuck}")
                raise self._failure
            self._running.wait(PATIENCE.delay(attempt))
            if self._running.is_stopping:
                raise Halted

    def _attempt(self, batch: DataFrame) -> Report:
        try:
            found = total([row.report for row in batch.mapInArrow(self._taking, REPORT).collect()])
        except PySparkException as error:
            self._failure = raised_in(error)
            raise
        self._say_restored()
        return found

    def _hold(self) -> None:
        """Wait while the subscription is paused, and until its rate allows a micro-batch."""
        while self._steering.state == "PAUSED" and not self._running.is_stopping:
            if not self._how.follow:
                self._running.noted("times paused", 1, "nothing is read until it is resumed")
                self._running.stop()
            self._running.wait(0.25)
        has_waited = False
        while not self._running.is_stopping:
            allowance = self._governor.allow(self._at_once)
            if allowance.batch == self._at_once:
                self._is_slowed = has_waited
                return
            if not has_waited and not self._is_slowed:
                self._say_limited(allowance.reason or "")
            has_waited = True
            self._running.wait(max(allowance.wait_s or 0.0, MIN_WAIT_S))
        raise Halted

    def _count(self, report: Report) -> None:
        self._governor.received(report.started)
        self._governor.settled(report.started)
        self._done.add(report)
        self._done.stuck = ""
        metrics, source = self._metrics, self._spec.source
        metrics.messages_received.labels(source).inc(report.received)
        metrics.message_executions.labels(source, "dispatched").inc(report.started + report.duplicates)
        metrics.message_executions.labels(source, "error").inc(report.refusals)
        metrics.dead_lettered.labels(source).inc(report.dead)
        metrics.batch_dispatches.labels(source).inc(report.requests)
        metrics.batch_messages.labels(source).inc(report.received)
        for controls, count in report.applied.items():
            metrics.directives_applied.labels(controls).inc(count)
        self._running.noted("duplicates", report.duplicates)
        self._running.noted("taken before", report.known)
        self._running.noted("refusals", report.refusals)
        self._running.noted("dead letters", report.dead)

    # ── saying ───────────────────────────────────────────────────────────────────────────────────

    def _heard(self, progress: StreamingQueryProgress) -> None:
        """After a micro-batch: let the broker's tools see how far we are, and Prometheus how much is left."""
        self._say_restored()
        (source,) = progress.sources
        done, latest = _offsets(source.endOffset), _offsets(source.latestOffset)
        if latest:
            self._metrics.source_lag.labels(self._steering.path).set(sum(latest.values()) - sum(done.values()))
        try:
            if progress.numInputRows and self._log is not None:
                self._log.commit(done)
        except SourceError as error:
            self._running.noted("times that the group's place is not shown", 1, str(error))

    def _say_lost(self, error: SourceError) -> None:
        self._running.noted("times waiting for the source", 1, str(error))
        if self._lost_at is None:
            self._lost_at = time.monotonic()
            self._steering.tell([events.source_lost(self._steering.about, self._spec.source, str(error))])

    def _say_restored(self) -> None:
        lost_at, self._lost_at = self._lost_at, None
        if lost_at is not None:
            outage_ms = int((time.monotonic() - lost_at) * 1_000)
            self._steering.tell([events.source_restored(self._steering.about, self._spec.source, outage_ms)])

    def _say_limited(self, reason: str) -> None:
        self._metrics.rate_limited.labels(self._spec.source, reason).inc()
        limits = self._governor
        told = events.rate_limited(self._steering.about, reason, limits.max_in_flight, limits.max_dispatch_per_sec)
        self._steering.tell([told])


def _offsets(text: str | None) -> dict[str, int]:
    """Offsets of a progress report, which says `None` or nothing where there are none."""
    return msgspec.json.decode(text, type=dict[str, int]) if text and text.startswith("{") else {}


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(value)
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


if __name__ == "__main__":
    from tape.pipeline.jobs.command import main

    main("subscription")
