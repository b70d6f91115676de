"""The Spark task of the fan-out: publishes the entries of its runs to a sink and returns the counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from tape.base.retry import Backoff, RetryPolicy
from tape.errors import SinkRejected
from tape.model.message import TenantEntry, event_id_of
from tape.pipeline.selection import entries_of
from tape.sinks.batch_publisher import BatchPublisher
from tape.sinks.dead_letters import Policy, dead_letter_of
from tape.sinks.metrics import RelayMetrics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_BATCH = 500
# Delays between the attempts of a task. After the last one, the task reports that it is stuck.
RETRY = RetryPolicy(max_attempts=4, initial_interval_s=0.5, backoff_coefficient=4.0)  # 0.5 s, 2 s, 8 s
_REPORT = "published long, retries long, global_seq long, stuck boolean, text string"


class RejectedEntries:
    """Collects the entries that a sink rejects for good; the driver writes them as dead letters."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.dead_letters: list[tuple[int, str]] = []

    @property
    def is_blocking(self) -> bool:
        """Whether a rejected entry blocks the entries after it."""
        return self.policy == "block"

    def dead_letter(self, entry: Any, error: Exception) -> None:
        """Collect a rejected entry."""
        self.dead_letters.append((entry.global_seq, dead_letter_of(entry, error)))


class RoundResult(msgspec.Struct):
    """The counts of a round, and by global_seq its dead letters and the entries at which tasks are stuck."""

    published: int
    retries: int
    dead_letters: list[tuple[int, str]]
    stuck: list[tuple[int, str]]


def publish_round(
    entries: DataFrame, open_sink: Callable[[], Any], policy: Policy, *, tenant_ids: bool = False
) -> RoundResult:
    """Publish entries to a sink; the entries of a run go to one task, in order. Event ids may name the tenant."""

    def publish_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sink, rejected, metrics = open_sink(), RejectedEntries(policy), RelayMetrics()
        stuck = ""
        left: list[Any] = []
        try:
            delivery = BatchPublisher(sink, rejected, metrics)
            for batch in batches:
                found = [TenantEntry(entry) if tenant_ids else entry for entry in entries_of(batch)]
                for start in range(0, len(found), MAX_BATCH):
                    reason, left = publish_with_retry(delivery, found[start : start + MAX_BATCH], metrics)
                    if reason is not None:
                        stuck = f"{event_id_of(left[0])}: {reason}"
                        break
                if stuck:
                    break
        finally:
            sink.close()
        rows = [(metrics.status.published, metrics.status.retries, 0, False, "")]
        rows += [(0, 0, number, False, dead_letter) for number, dead_letter in rejected.dead_letters]
        rows += [(0, 0, min(entry.global_seq for entry in left), True, stuck)] if stuck else []
        kinds = (pa.int64(), pa.int64(), pa.int64(), pa.bool_(), pa.string())
        arrays = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names=["published", "retries", "global_seq", "stuck", "text"])

    ordered = entries.repartition("run_id").sortWithinPartitions("global_seq")
    rows = ordered.mapInArrow(publish_partition, _REPORT).collect()
    return RoundResult(
        sum(row.published for row in rows),
        sum(row.retries for row in rows),
        sorted((row.global_seq, row.text) for row in rows if row.global_seq and not row.stuck),
        sorted((row.global_seq, row.text) for row in rows if row.stuck),
    )


def publish_with_retry(
    delivery: BatchPublisher, entries: list[Any], metrics: RelayMetrics, policy: RetryPolicy = RETRY
) -> tuple[Exception | None, list[Any]]:
    """Publish entries, with retries; return the last error, or None, and the entries that are left, in order."""
    left, backoff = entries, Backoff(policy)
    while True:
        reason, left = delivery.publish(left)
        if reason is None or isinstance(reason, SinkRejected) or not policy.should_retry(reason, backoff.failures + 1):
            return reason, left
        metrics.count_retry(reason)
        backoff.wait()
