"""What streams say about themselves, for the terminal and for Prometheus."""

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

from tape.pipeline.job_context import Running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PATIENCE_S = 10.0
LOOK_S = 0.1
# A stream that is told to stop may finish the micro-batch that it is in.
GRACE_S = 60.0


class Listener(StreamingQueryListener):
    """Tells a job about each micro-batch of the queries of its session."""

    def __init__(self, running: Running, on_progress: Callable[[StreamingQueryProgress], None]) -> None:
        self._running = running
        self._on_progress = on_progress
        self._heard = -1
        self._news = threading.Condition()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  (Spark's name)
        """Nothing to tell yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802  (Spark's name)
        """One micro-batch is done."""
        progress = event.progress
        if progress.numInputRows:
            self._running.told_batch(progress.numInputRows, progress.batchId, progress.batchDuration / 1_000)
        self._on_progress(progress)
        with self._news:
            self._heard = max(self._heard, progress.batchId)
            self._news.notify_all()

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802  (Spark's name)
        """There was nothing new."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802  (Spark's name)
        """The job itself says how it ended."""

    def hear_out(self, query: StreamingQuery) -> None:
        """Wait a moment for what Spark has to tell about a query that has ended: it tells it from another thread."""
        if (last := query.lastProgress) is not None:
            with self._news:
                self._news.wait_for(lambda: self._heard >= last["batchId"], PATIENCE_S)


@contextlib.contextmanager
def listening(
    spark: SparkSession,
    running: Running,
    on_progress: Callable[[StreamingQueryProgress], None] = lambda progress: None,
) -> Iterator[Listener]:
    """Let a job hear of every micro-batch meanwhile."""
    listener = Listener(running, on_progress)
    spark.streams.addListener(listener)
    try:
        yield listener
    finally:
        spark.streams.removeListener(listener)


def wait_for_end(query: StreamingQuery, running: Running) -> None:
    """Until a query has ended by itself, or is told to; then the micro-batch that it is in is finished."""
    while query.isActive and not running.is_stopping:
        running.wait(LOOK_S)
    deadline = time.monotonic() + GRACE_S
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    query.stop()
    if (error := query.exception()) is not None:
        raise error
