"""`rollup`: counts, outcomes and durations per minute, hour and day, in tables of the journal's store."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812  (the usual name)

from tape.archive.location import resolve_url
from tape.archive.table import ArchiveTable
from tape.engine.ledgers.rollups import (
    MINUTE_MS,
    CountRollup,
    DurationRollup,
    IntervalKey,
    OpenInterval,
    RollupBatch,
    RollupPosition,
    add_batch,
    read_open,
    read_position,
)
from tape.journal.appender import Head, read_head
from tape.pipeline import spans
from tape.pipeline.batch_writer import transact
from tape.pipeline.job_context import JobContext
from tape.pipeline.journal_reader import query_store
from tape.pipeline.options import resolve_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUND_ENTRIES = 1_000_000
PAUSE_S = 1.0


def rollup(
    spark: SparkSession,
    store: str,
    context: JobContext,
    *,
    lake: str = "",
    follow: bool = False,
    round_entries: int = ROUND_ENTRIES,
) -> int:
    """Count new entries, with `follow` until stopped; return their number.

    With `lake`, entries that were pruned before they were counted are read from that archive.
    """
    store, lake = resolve_store(store), resolve_url(lake) if lake else ""
    transact(store, lambda tx: None)  # fails before anything is read if the schema is outdated
    done = 0
    while not context.is_stopping:
        head, position = query_store(store, lambda reader: (read_head(reader), read_position(reader)))
        after = position.global_seq or _first(head, lake) - 1
        until = min(head.global_seq, after + round_entries)
        if after >= until:
            if not follow:
                break
            context.wait(PAUSE_S)
            continue
        started = time.monotonic()
        batch = read_batch(spark, store, lake, position, after, until)
        if transact(store, partial(add_batch, batch=batch)):
            done += until - after
            context.report_progress(until - after, until, head.global_seq, time.monotonic() - started)
    return done


def _first(head: Head, lake: str) -> int:
    """Return the first entry that can be counted: the oldest of the archive, or of the journal."""
    return min(ArchiveTable.open(lake).begin, head.oldest) if lake else head.oldest


def read_batch(
    spark: SparkSession, store: str, lake: str, before: RollupPosition, after: int, until: int
) -> RollupBatch:
    """Compute what a range of the journal adds to the rollups."""
    reader = spark.read.format("tape").schema(spans.COLUMNS).option("store", store)
    if lake:
        reader = reader.option("lake", lake)
    reader = reader.option("minPartitions", min(spark.sparkContext.defaultParallelism, -(-(until - after) // 5_000)))
    entries = reader.option("startingOffsets", after).option("endingOffsets", until).load()
    # Several aggregations use these rows; reading them again would cost more than keeping them.
    kept = spans.marked(entries).withColumn("start_ms", spans.window_of("ts_ms", MINUTE_MS)).persist()
    try:
        rows = _minutes(kept)
        durations, opened, closed = _spans(spark, store, kept, after) if _has_moments(rows) else ([], [], [])
        first_ms = min(row["start_ms"] for row in rows)
        return RollupBatch(
            after=before.global_seq,
            position=RollupPosition(
                global_seq=until,
                # The first minute of a pruned journal is incomplete.
                since_ms=before.since_ms if before.global_seq or not after else first_ms + MINUTE_MS,
                watermark_ms=max(before.watermark_ms, *(row["latest_ms"] for row in rows)),
                late=before.late + _late(spark, kept, rows, before),
            ),
            counts=[
                CountRollup(
                    row["start_ms"], row["tenant"], row["type"], spans.tool_of(row), row["entries"], row["bytes"]
                )
                for row in rows
            ],
            durations=durations,
            opened=opened,
            closed=closed,
        )
    finally:
        kept.unpersist()


def _has_moments(rows: Sequence[Row]) -> bool:
    return not {row["type"] for row in rows}.isdisjoint(spans.TYPES)


def _minutes(kept: DataFrame) -> list[Row]:
    sums = (
        F.count("*").alias("entries"),
        F.sum("bytes").alias("bytes"),
        F.min("global_seq").alias("first"),
        F.max("global_seq").alias("last"),
        F.max("ts_ms").alias("latest_ms"),
    )
    return kept.groupBy("start_ms", "tenant", "type", "tool").agg(*sums).collect()


def _late(spark: SparkSession, kept: DataFrame, rows: Sequence[Row], before: RollupPosition) -> int:
    """Count the entries that follow an entry of a later minute. A journal written by one clock has none."""
    firsts: dict[int, int] = {}
    lasts: dict[int, int] = {}
    for row in rows:
        minute = row["start_ms"]
        firsts[minute] = min(row["first"], firsts.get(minute, row["first"]))
        lasts[minute] = max(row["last"], lasts.get(minute, 0))
    closed_at: list[tuple[int, int]] = []
    # An entry of the minute is late after this global_seq: the first entry of any later minute.
    late_from = 1 << 62
    for minute in sorted(firsts, reverse=True):
        if before.watermark_ms // MINUTE_MS * MINUTE_MS > minute:
            late_from = 0
        if lasts[minute] > late_from:
            closed_at.append((minute, late_from))
        late_from = min(late_from, firsts[minute])
    if not closed_at:
        return 0
    late_rows = spark.createDataFrame(closed_at, "start_ms long, late_from long")
    return kept.join(late_rows, "start_ms").where("global_seq > late_from").count()


def _spans(
    spark: SparkSession, store: str, kept: DataFrame, after: int
) -> tuple[list[DurationRollup], list[OpenInterval], list[IntervalKey]]:
    """Return the durations of ended spans, the spans that opened, and the keys of those that closed."""
    still_open = query_store(store, read_open)
    found = spans.spans(spans.with_open(spark, spans.moments(kept), still_open)).persist()
    try:
        is_new, has_ended = F.col("began.global_seq") > after, F.col("ended").isNotNull()
        changed = found.where((is_new & ~has_ended) | (~is_new & has_ended))
        opened, closed = [], []
        for row in changed.select(*spans.KEY, "began.*", has_ended.alias("has_ended")).collect():
            key = (row["run_id"], row["tenant"], row["measure"], row["name"])
            if row["has_ended"]:
                closed.append(key)
            else:
                opened.append(OpenInterval(*key, spans.tool_of(row), row["global_seq"], row["ts_ms"]))
        return spans.durations(found, MINUTE_MS), opened, closed
    finally:
        found.unpersist()


if __name__ == "__main__":
    from tape.pipeline.jobs.command import main

    main("rollup")
