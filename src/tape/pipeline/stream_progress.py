"""Progress of streaming queries, reported to the job's terminal and metrics."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from tape.pipeline.job_context import JobContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PROGRESS_TIMEOUT_S = 10.0
POLL_S = 0.1
# A stopped stream may finish its current micro-batch within this time.
GRACE_S = 60.0


class ProgressListener(StreamingQueryListener):
    """Reports each micro-batch of the session's queries to the job."""

    def __init__(self, context: JobContext, on_progress: Callable[[StreamingQueryProgress], None]) -> None:
        self._context = context
        self._on_progress = on_progress
        self._last_batch = -1
        self._changed = threading.Condition()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  (Spark's name)
        """Nothing to report."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802  (Spark's name)
        """Report a finished micro-batch."""
        progress = event.progress
        if progress.numInputRows:
            self._context.report_batch(progress.numInputRows, progress.batchId, progress.batchDuration / 1_000)
        self._on_progress(progress)
        with self._changed:
            self._last_batch = max(self._last_batch, progress.batchId)
            self._changed.notify_all()

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802  (Spark's name)
        """Nothing to report."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802  (Spark's name)
        """Nothing to report: the job reports how its query ended."""

    def wait_for_progress(self, query: StreamingQuery) -> None:
        """Wait up to 10 s for the last progress of a query that has ended; Spark calls listeners asynchronously."""
        if (last := query.lastProgress) is not None:
            with self._changed:
                self._changed.wait_for(lambda: self._last_batch >= last["batchId"], PROGRESS_TIMEOUT_S)


@contextlib.contextmanager
def listen_to_progress(
    spark: SparkSession,
    context: JobContext,
    on_progress: Callable[[StreamingQueryProgress], None] = lambda progress: None,
) -> Iterator[ProgressListener]:
    """Report every micro-batch to the job while the block runs."""
    listener = ProgressListener(context, on_progress)
    spark.streams.addListener(listener)
    try:
        yield listener
    finally:
        spark.streams.removeListener(listener)


def wait_for_end(query: StreamingQuery, context: JobContext) -> None:
    """Wait until a query ends or the job is stopped; then let it finish its current micro-batch within 60 s."""
    while query.isActive and not context.is_stopping:
        context.wait(POLL_S)
    deadline = time.monotonic() + GRACE_S
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
        time.sleep(POLL_S)
    query.stop()
    if (error := query.exception()) is not None:
        raise error
