"""What a task of a fan-out does: it gives the entries of its runs to a sink, and reports what became of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from tape.errors import SinkRejected
from tape.model.entry import Entry
from tape.model.message import event_id_of
from tape.pipeline.selection import entries_of
from tape.sinks.handover import HandOver
from tape.sinks.metrics import RelayMetrics
from tape.sinks.policy import Policy, letter_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HAND_OVER = 500
# How long a task tries by itself before the round is given up.
RETRY_PAUSES_S = (0.5, 2.0, 8.0)
_REPORT = "given long, retries long, global_seq long, stuck boolean, text string"


class Aside:
    """Collects in a task what a sink will never take, for the driver to write down."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.letters: list[tuple[int, str]] = []

    @property
    def is_blocking(self) -> bool:
        """Whether entries stay in their place."""
        return self.policy == "block"

    def take(self, entry: Any, error: Exception) -> None:
        """Set an entry aside."""
        self.letters.append((entry.global_seq, letter_of(entry, error)))


class Round(msgspec.Struct):
    """What became of a round: entries given, and by global_seq the dead letters and what tasks are stuck at."""

    given: int
    retries: int
    aside: list[tuple[int, str]]
    stuck: list[tuple[int, str]]


def hand_over(entries: DataFrame, opener: Callable[[], Any], policy: Policy) -> Round:
    """All entries to the sink: a run goes to one task, which keeps its order."""

    def give(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sink, aside, metrics = opener(), Aside(policy), RelayMetrics()
        stuck = ""
        left: list[Entry] = []
        try:
            hand = HandOver(sink, aside, metrics)
            for batch in batches:
                found = list(entries_of(batch))
                for start in range(0, len(found), HAND_OVER):
                    reason, left = publish(hand, found[start : start + HAND_OVER], metrics)
                    if reason is not None:
                        stuck = f"{event_id_of(left[0])}: {reason}"
                        break
                if stuck:
                    break
        finally:
            sink.close()
        rows = [(metrics.status.published, metrics.status.retries, 0, False, "")]
        rows += [(0, 0, number, False, letter) for number, letter in aside.letters]
        rows += [(0, 0, min(entry.global_seq for entry in left), True, stuck)] if stuck else []
        kinds = (pa.int64(), pa.int64(), pa.int64(), pa.bool_(), pa.string())
        arrays = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names=["given", "retries", "global_seq", "stuck", "text"])

    ordered = entries.repartition("run_id").sortWithinPartitions("global_seq")
    rows = ordered.mapInArrow(give, _REPORT).collect()
    return Round(
        sum(row.given for row in rows),
        sum(row.retries for row in rows),
        sorted((row.global_seq, row.text) for row in rows if row.global_seq and not row.stuck),
        sorted((row.global_seq, row.text) for row in rows if row.stuck),
    )


def publish(
    hand: HandOver, entries: list[Entry], metrics: RelayMetrics, pauses_s: Sequence[float] = RETRY_PAUSES_S
) -> tuple[Exception | None, list[Entry]]:
    """Give entries to a sink until it has them all; after the last pause, what is left in its order, and why."""
    left = entries
    for pause_s in (*pauses_s, None):
        reason, left = hand.give(left)
        if reason is None or isinstance(reason, SinkRejected) or pause_s is None:
            return reason, left
        metrics.was_retried(reason)
        time.sleep(pause_s)
    raise AssertionError("the last pause returns")
