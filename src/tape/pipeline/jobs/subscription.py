"""`subscription`: a Spark stream that starts one execution for each message of a source.

Executors read ranges of offsets, route messages as the live runtime does, and write executions. The executions of a
range and its offsets are one transaction. The checkpoint of Spark is therefore only a cache: without it, the stream
resumes from the offsets in the store.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
from pyspark.errors import PySparkException

from tape.archive.location import resolve_url
from tape.base.owner import process_name
from tape.base.retry import Backoff
from tape.base.telemetry.metrics import Metrics
from tape.brokers.log import Log, open_log
from tape.errors import OrderNotKept, ServerUnreachable, SourceError, TapeError
from tape.pipeline.checkpoints import Checkpoint, bind_checkpoint
from tape.pipeline.downstream_circuits import DownstreamCircuits
from tape.pipeline.job_context import JobContext
from tape.pipeline.message_source import NAME
from tape.pipeline.options import resolve_store
from tape.pipeline.record_writers import ServerRecordWriter, StoreRecordWriter
from tape.pipeline.spark_errors import find_tape_error, is_worker_start_failure
from tape.pipeline.stream_progress import listen_to_progress, wait_for_end
from tape.pipeline.subscription_control import SERVER_RETRY, SubscriptionControl
from tape.pipeline.subscription_task import REPORT_SCHEMA, ExecutionReport, SubscriptionTask, sum_reports
from tape.subscriptions import events
from tape.subscriptions.api_client import Control
from tape.subscriptions.dispatch.holds import HOLD_RETRY
from tape.subscriptions.dispatch.http import ServerDownstreams
from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.runtime.flow_limits import MIN_WAIT_S, FlowLimiter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

VERSION = 1
BATCH_MESSAGES = 50_000
# Interval between two micro-batches.
TRIGGER_INTERVAL = "250 milliseconds"
# Attempts per micro-batch without `follow`; with it, attempts are unlimited.
MAX_ATTEMPTS = 4


class StreamOptions(msgspec.Struct, frozen=True):
    """The options of the job. With `store`, executors write into that store, otherwise through the server."""

    checkpoint: str
    follow: bool = False
    store: str = ""
    batch_messages: int = BATCH_MESSAGES
    skip_lost: bool = False


class JobStopped(Exception):
    """The job was stopped while a micro-batch waited; the next start processes it."""


def run_subscription(
    spark: SparkSession,
    url: str,
    token: str,
    path: str,
    context: JobContext,
    options: StreamOptions,
    metrics: Metrics | None = None,
) -> ExecutionReport:
    """Start executions for the messages of a source, with `follow` until stopped; return the totals."""
    api = Control(url, token)
    worker_id = process_name()
    control = SubscriptionControl(api, path, context, worker_id=worker_id, is_following=options.follow)
    open_writer = (
        partial(StoreRecordWriter, resolve_store(options.store))
        if options.store
        else partial(ServerRecordWriter, url, token)
    )
    circuits: DownstreamCircuits | None = None
    try:
        subscription = control.start()
        task = SubscriptionTask(subscription, control.ref, open_writer)
        circuits = DownstreamCircuits(subscription, control.ref, ServerDownstreams(api, path), control.emit)
        circuits.start()
        return SubscriptionStream(
            spark, subscription, control, circuits, task, context, options, metrics or Metrics(context.registry)
        ).run()
    finally:
        if circuits is not None:
            circuits.close()
        control.close()
        api.close()


class SubscriptionStream:
    """The streaming query of one subscription, restarted after outages of its broker or server."""

    def __init__(
        self,
        spark: SparkSession,
        subscription: Subscription,
        control: SubscriptionControl,
        circuits: DownstreamCircuits,
        task: SubscriptionTask,
        context: JobContext,
        options: StreamOptions,
        metrics: Metrics,
    ) -> None:
        self._spark = spark
        self._subscription = subscription
        self._spec = spec = subscription.spec
        self._control = control
        self._circuits = circuits
        self._task = task
        self._context = context
        self._options = options
        self._metrics = metrics
        self._limiter = FlowLimiter(spec.max_in_flight, spec.limits.max_dispatch_per_sec)
        limits = (options.batch_messages, spec.max_in_flight, spec.limits.max_dispatch_per_sec)
        self._batch_limit = min(limit for limit in limits if limit is not None)
        self._totals = ExecutionReport()
        self._failure: TapeError | JobStopped | None = None
        self._log: Log | None = None
        self._lost_at: float | None = None
        self._is_slowed = False

    def run(self) -> ExecutionReport:
        """Run the query to its end, or until the job is stopped."""
        checkpoint, starts, backoff = resolve_url(self._options.checkpoint), 0, Backoff(SERVER_RETRY)
        source, topic = self._spec.source, self._spec.topic or self._spec.stream
        bind_checkpoint(
            checkpoint,
            Checkpoint("subscription", "", VERSION, {"path": self._control.path, "source": source, "reads": topic}, 0),
        )
        while not self._context.is_stopping:
            try:
                self._stream(checkpoint)
                break
            except SourceError as error:
                if not error.retryable or not self._options.follow:
                    raise
                if self._lost_at is None:
                    backoff.reset()
                self._emit_source_lost(error)
                backoff.wait(stop=self._context)
            except PySparkException as error:
                starts += 1
                if not is_worker_start_failure(error) or starts == MAX_ATTEMPTS:
                    raise
                self._context.report_count("Python worker start failures", 1)
        return self._totals

    def _stream(self, checkpoint: str) -> None:
        connection = self._control.connection_options(self._spec)
        self._log = open_log(self._spec.source, connection["connection"], connection["secrets"])
        try:
            self._check_order()
            writer = self._writer(connection, checkpoint)
            with listen_to_progress(self._spark, self._context, self._on_progress) as listener:
                query = writer.start()
                try:
                    wait_for_end(query, self._context)
                except PySparkException as error:
                    self._raise_failure(error, query)
                listener.wait_for_progress(query)
        finally:
            self._log.close()

    def _writer(self, connection: dict[str, Any], checkpoint: str) -> DataStreamWriter:
        options = {name: _text(value) for name, value in connection["connection"].items()}
        options |= {
            "source": self._spec.source,
            "secretSettings": msgspec.json.encode(connection["secrets"]).decode(),
            "startingOffsets": msgspec.json.encode(self._control.next_offsets()).decode(),
            "maxOffsetsPerTrigger": str(self._batch_limit),
            "failOnDataLoss": str(not self._options.skip_lost).lower(),
        }
        if self._spec.spool.ordering == "none":
            options["minPartitions"] = str(self._spark.sparkContext.defaultParallelism)
        rows = self._spark.readStream.format(NAME).options(**options).load()
        writer = rows.writeStream.foreachBatch(self._write_batch).option("checkpointLocation", checkpoint)
        writer = writer.queryName(self._control.path)
        return (
            writer.trigger(processingTime=TRIGGER_INTERVAL)
            if self._options.follow
            else writer.trigger(availableNow=True)
        )

    def _check_order(self) -> None:
        assert self._log is not None
        parts = self._log.ranges()
        if self._spec.spool.ordering == "global" and len(parts) > 1:
            raise OrderNotKept(
                f"{self._control.path}: spool.ordering is 'global', and topic {self._spec.topic!r} has {len(parts)}"
                " partitions, between which there is no order. Use 'per_key', or a topic with one partition."
            )

    def _raise_failure(self, error: PySparkException, query: StreamingQuery) -> None:
        """Raise the error that ended a query, unless the job was stopped."""
        failure, self._failure = self._failure, None
        if isinstance(failure, JobStopped):
            return
        raise failure or find_tape_error(error) or error

    # ── one micro-batch ──────────────────────────────────────────────────────────────────────────

    def _write_batch(self, batch: DataFrame, number: int) -> None:
        self._wait_until_allowed()
        backoff = Backoff(HOLD_RETRY)
        while True:
            report = self._attempt(batch)
            self._count(report)
            self._control.hold([report.stuck] if report.is_held else [])
            if not report.stuck:
                return
            self._context.report_count("waits", 1, report.stuck)
            if not self._options.follow and backoff.failures + 1 == MAX_ATTEMPTS:
                self._failure = ServerUnreachable(f"Executions cannot be written: {report.stuck}")
                raise self._failure
            if backoff.wait(stop=self._context):
                self._stop_batch()

    def _attempt(self, batch: DataFrame) -> ExecutionReport:
        try:
            found = sum_reports([row.report for row in batch.mapInArrow(self._task, REPORT_SCHEMA).collect()])
        except PySparkException as error:
            self._failure = find_tape_error(error)
            raise
        self._emit_source_restored()
        return found

    def _wait_until_allowed(self) -> None:
        """Wait while the subscription is paused, and until its rate limit allows a micro-batch."""
        while self._control.state == "PAUSED" and not self._context.is_stopping:
            if not self._options.follow:
                self._context.report_count("pauses", 1, "no messages are read until the subscription is resumed")
                self._context.stop()
            self._context.wait(0.25)
        self._wait_for_downstreams()
        has_waited = False
        while not self._context.is_stopping:
            allowance = self._limiter.allow(self._batch_limit)
            if allowance.batch == self._batch_limit:
                self._is_slowed = has_waited
                return
            if not has_waited and not self._is_slowed:
                self._emit_rate_limited(allowance.reason or "")
            has_waited = True
            self._context.wait(max(allowance.wait_s or 0.0, MIN_WAIT_S))
        self._stop_batch()

    def _wait_for_downstreams(self) -> None:
        """Wait while the circuit of a downstream is open: its runs wait, and further ones would wait behind them."""
        is_reported = False
        while (names := self._circuits.open) and not self._context.is_stopping and not self._circuits.take_probe():
            if not is_reported:
                is_reported = True
                listed = ", ".join(repr(name) for name in names)
                self._context.report_count("waits for a downstream", 1, f"{listed} unavailable, no messages are read")
            if not self._options.follow:
                self._context.stop()
            self._context.wait(0.25)

    def _stop_batch(self) -> NoReturn:
        self._failure = JobStopped()  # Spark reports exceptions of a micro-batch as text
        raise self._failure

    def _count(self, report: ExecutionReport) -> None:
        self._limiter.received(report.started)
        self._limiter.settled(report.started)
        self._totals.add(report)
        self._totals.stuck, self._totals.is_held = "", False
        metrics, source = self._metrics, self._spec.source
        metrics.messages_received.labels(source).inc(report.received)
        metrics.message_executions.labels(source, "dispatched").inc(report.started + report.duplicates)
        metrics.message_executions.labels(source, "error").inc(report.refusals)
        metrics.dead_lettered.labels(source).inc(report.dead)
        metrics.batch_dispatches.labels(source).inc(report.requests)
        metrics.batch_messages.labels(source).inc(report.received)
        for controls, count in report.applied.items():
            metrics.directives_applied.labels(controls).inc(count)
        self._context.report_count("duplicates", report.duplicates)
        self._context.report_count("written before", report.known)
        self._context.report_count("rejections", report.refusals)
        self._context.report_count("dead letters", report.dead)

    # ── progress and events ──────────────────────────────────────────────────────────────────────

    def _on_progress(self, progress: StreamingQueryProgress) -> None:
        """After a micro-batch, commit the offsets to the broker for its tools, and set the lag metric."""
        self._emit_source_restored()
        (source,) = progress.sources
        done, latest = _offsets(source.endOffset), _offsets(source.latestOffset)
        if latest:
            self._metrics.source_lag.labels(self._control.path).set(sum(latest.values()) - sum(done.values()))
        try:
            if progress.numInputRows and self._log is not None:
                self._log.commit(done)
        except SourceError as error:
            self._context.report_count("offset commits failed", 1, str(error))

    def _emit_source_lost(self, error: SourceError) -> None:
        self._context.report_count("waits for the source", 1, str(error))
        if self._lost_at is None:
            self._lost_at = time.monotonic()
            self._control.emit([events.source_lost(self._control.ref, self._spec.source, str(error))])

    def _emit_source_restored(self) -> None:
        lost_at, self._lost_at = self._lost_at, None
        if lost_at is not None:
            outage_ms = int((time.monotonic() - lost_at) * 1_000)
            self._control.emit([events.source_restored(self._control.ref, self._spec.source, outage_ms)])

    def _emit_rate_limited(self, reason: str) -> None:
        self._metrics.rate_limited.labels(self._spec.source, reason).inc()
        limits = self._limiter
        report_progress = events.rate_limited(
            self._control.ref, reason, limits.max_in_flight, limits.max_dispatch_per_sec
        )
        self._control.emit([report_progress])


def _offsets(text: str | None) -> dict[str, int]:
    """Parse the offsets of a progress report; without offsets, Spark reports `None` or an empty text."""
    return msgspec.json.decode(text, type=dict[str, int]) if text and text.startswith("{") else {}


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(value)
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


if __name__ == "__main__":
    from tape.pipeline.jobs.command import main

    main("subscription")
