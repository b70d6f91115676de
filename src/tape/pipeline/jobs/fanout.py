"""`fanout`: entries to a sink from many tasks at once, each run in its own order.

At least once: a round that is killed is handed over again, and a receiver that deduplicates on
`(run_id, seq)` sees each entry once, as with the relay. The position is kept in the store under a name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tape.errors import SinkHeldBack
from tape.journal.entry import Entry
from tape.journal.page import read_head
from tape.pipeline.batches import append_batch, last_number
from tape.pipeline.hot import ask_patiently
from tape.pipeline.options import resolve_store
from tape.pipeline.running import Running
from tape.pipeline.selecting import entries_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROUND_ENTRIES = 100_000
HAND_OVER = 500
PAUSE_S = 1.0
RETRY_PAUSES_S = (0.5, 2.0, 8.0, 30.0)


def fanout(
    spark: SparkSession,
    store: str,
    name: str,
    open_sink: Callable[[], Any],
    running: Running,
    *,
    subject: str = "",
    where: str = "",
    from_now: bool = False,
    follow: bool = False,
    round_entries: int = ROUND_ENTRIES,
) -> int:
    """Hand over what this name has not yet; the number of entries that were. `from_now` counts the first time only.

    `open_sink` is called in every task and must be picklable.
    """
    store, producer = resolve_store(store), f"fanout/{name}"
    done = 0
    while not running.is_stopping:
        head = ask_patiently(store, read_head)
        after = ask_patiently(store, lambda reader: last_number(reader, producer))
        if after is None:
            after = head.global_seq if from_now else head.oldest - 1
            append_batch(store, producer, str(after), [], number=after)
        until = min(head.global_seq, after + round_entries)
        if after >= until:
            if not follow:
                break
            running.wait(PAUSE_S)
            continue
        started = time.monotonic()
        reader = spark.read.format("tape").option("store", store).option("subject", subject).option("where", where)
        entries = reader.option("startingOffsets", after).option("endingOffsets", until).load()
        count = _hand_over(entries, open_sink)
        append_batch(store, producer, str(until), [], number=until)
        done += count
        running.told(count, until, head.global_seq, time.monotonic() - started)
    return done


def _hand_over(entries: DataFrame, open_sink: Callable[[], Any]) -> int:
    """All entries to the sink: a run goes to one task, which keeps its order."""

    def give(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sink, given = open_sink(), 0
        try:
            for batch in batches:
                found = list(entries_of(batch))
                for start in range(0, len(found), HAND_OVER):
                    publish(sink, found[start : start + HAND_OVER])
                given += len(found)
        finally:
            sink.close()
        yield pa.RecordBatch.from_pydict({"entries": pa.array([given], pa.int64())})

    ordered = entries.repartition("run_id").sortWithinPartitions("global_seq")
    return sum(row.entries for row in ordered.mapInArrow(give, "entries long").collect())


def publish(sink: Any, entries: list[Entry], pauses_s: tuple[float, ...] = RETRY_PAUSES_S) -> None:
    """Give entries to a sink until it has them all; after the last pause its error is raised."""
    for pause_s in (*pauses_s, None):
        outcomes = _outcomes(sink, entries)
        failed = [one for one in outcomes if one is not None and not isinstance(one, SinkHeldBack)]
        entries = [entry for entry, outcome in zip(entries, outcomes, strict=True) if outcome is not None]
        if not entries:
            return
        if pause_s is None:
            raise failed[0]
        time.sleep(pause_s)


def _outcomes(sink: Any, entries: list[Entry]) -> list[Exception | None]:
    """What became of each entry; after one that failed, those behind it wait."""
    if (batch := getattr(sink, "publish_batch", None)) is not None:
        outcomes: list[Exception | None] = batch(entries)
    else:
        outcomes = []
        for entry in entries:
            try:
                sink.publish(entry)
            except Exception as error:
                held = entries[len(outcomes) + 1 :]
                outcomes += [error, *(SinkHeldBack(each, entry) for each in held)]
                break
            outcomes.append(None)
    if (flush := getattr(sink, "flush", None)) is not None:
        try:
            flush()
        except Exception as error:
            getattr(sink, "discard", lambda: None)()
            return [error] * len(entries)
    return outcomes
