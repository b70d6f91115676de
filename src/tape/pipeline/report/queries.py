"""Queries of the report: Spark reads the journal and the archive, the store's tables give lag and dead letters."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  (the usual name)

from tape.archive.location import resolve_url
from tape.archive.table import ArchiveTable
from tape.base.clock import now_ms
from tape.engine.ledgers.rollups import read_position
from tape.engine.reactions.statistics import read_statistics
from tape.journal.appender import Head, read_head
from tape.model.reaction_states import TaskStatus
from tape.pipeline import spans
from tape.pipeline.journal_reader import query_store
from tape.pipeline.options import resolve_store, shown
from tape.pipeline.report.facts import (
    DeadLetterGroup,
    EffectSpan,
    Facts,
    OpenSpans,
    ReaderLag,
    SlowRun,
    Volume,
    width_for,
)
from tape.store import Reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# How long before the window the beginnings of spans are searched.
LOOK_BACK_MS = 7 * 86_400_000
SLOW_RUNS = 12


def find_facts(spark: SparkSession, store: str, lake: str, since_ms: int, until_ms: int) -> Facts:
    """Collect the data of the entries from one time to before another."""
    store, lake = resolve_store(store), resolve_url(lake) if lake else ""
    width_ms = width_for(until_ms - since_ms)
    entries = _entries(spark, store, lake, since_ms - LOOK_BACK_MS, until_ms)
    kept = spans.marked(entries).persist()
    found = spans.spans(spans.moments(kept)).persist()
    try:
        ended_within = found.where(F.col("ended.ts_ms") >= since_ms)
        head, readers = query_store(store, lambda reader: (read_head(reader), _readers(reader)))
        return Facts(
            store=shown(store),
            lake=shown(lake),
            since_ms=since_ms,
            until_ms=until_ms,
            width_ms=width_ms,
            made_ms=now_ms(),
            head=head.global_seq,
            oldest=ArchiveTable.open(lake).begin if lake else head.oldest,
            looked_back_ms=LOOK_BACK_MS,
            volume=_volume(kept.where(F.col("ts_ms") >= since_ms), width_ms),
            durations=spans.durations(ended_within, width_ms),
            slow=_slow(found, ended_within),
            open=_open(found),
            dead_letters=query_store(store, lambda reader: _dead_letters(reader, since_ms, until_ms)),
            readers=[*readers, *([_archive(store, lake, head)] if lake else [])],
        )
    finally:
        found.unpersist()
        kept.unpersist()


def _entries(spark: SparkSession, store: str, lake: str, since_ms: int, until_ms: int) -> DataFrame:
    reader = spark.read.format("tape").schema(spans.COLUMNS).option("store", store)
    reader = reader.option("minPartitions", spark.sparkContext.defaultParallelism)
    # Without an archive, pruned entries are missing; the page shows the oldest entry.
    reader = reader.option("lake", lake) if lake else reader.option("failOnDataLoss", "false")
    for name, moment in (("startingOffsets", since_ms), ("endingOffsets", until_ms)):
        reader = reader.option(name, dt.datetime.fromtimestamp(max(moment, 0) / 1000, dt.UTC).isoformat())
    return reader.load()


def _volume(within: DataFrame, width_ms: int) -> list[Volume]:
    keys = (spans.window_of("ts_ms", width_ms).alias("start_ms"), "tenant", "kind")
    sums = (F.count("*").alias("entries"), F.sum("bytes").alias("bytes"))
    return [Volume(**row.asDict()) for row in within.groupBy(*keys).agg(*sums).collect()]


def _slow(found: DataFrame, ended_within: DataFrame) -> list[SlowRun]:
    runs = ended_within.where(f"measure = '{spans.RUN}' AND began IS NOT NULL")
    longest = runs.orderBy(spans.duration_of().desc(), "run_id").limit(SLOW_RUNS).collect()
    ids = [row["run_id"] for row in longest]
    steps: dict[tuple[str, str], list[EffectSpan]] = {}
    effects = found.where(F.col("run_id").isin(ids) & (F.col("measure") == spans.EFFECT) & F.col("began").isNotNull())
    for row in sorted(effects.collect(), key=lambda row: row["began"]["global_seq"]):
        began, ended = row["began"], row["ended"]
        outcome, ended_ms = (ended["outcome"], ended["ts_ms"]) if ended else ("", None)
        span = EffectSpan(spans.tool_of(began), began["ts_ms"], ended_ms, outcome)
        steps.setdefault((row["run_id"], row["tenant"]), []).append(span)
    return [
        SlowRun(
            row["run_id"],
            row["tenant"],
            row["began"]["ts_ms"],
            row["ended"]["ts_ms"],
            row["ended"]["outcome"],
            steps.get((row["run_id"], row["tenant"]), []),
        )
        for row in longest
    ]


def _open(found: DataFrame) -> list[OpenSpans]:
    still = found.where("ended IS NULL").groupBy("measure", "began.tool")
    rows = still.agg(F.count("*").alias("entries"), F.min("began.ts_ms").alias("oldest_ms")).collect()
    opened = [OpenSpans(row["measure"], spans.tool_of(row), row["entries"], row["oldest_ms"]) for row in rows]
    return sorted(opened, key=lambda one: (one.measure, -one.entries, one.tool))


def _dead_letters(reader: Reader, since_ms: int, until_ms: int) -> list[DeadLetterGroup]:
    found: dict[str, list[tuple[int, str]]] = {}
    for reaction_id, ts_ms, error in reader.query(
        f"SELECT reaction_id, source_ts_ms, last_error FROM tape_tasks WHERE status = {TaskStatus.DLQ}"
        " AND source_ts_ms >= ? AND source_ts_ms < ? ORDER BY reaction_id, source_global_seq",
        since_ms,
        until_ms,
    ):
        found.setdefault(reaction_id, []).append((ts_ms, error))
    return [DeadLetterGroup(name, len(rows), rows[0][0], rows[-1][0], rows[-1][1]) for name, rows in found.items()]


def _readers(reader: Reader) -> list[ReaderLag]:
    """Return the lag of every reader whose position is in the store."""
    head = read_head(reader)
    positions = {"rollup": read_position(reader).global_seq}
    fanouts = "SELECT producer, max(number) FROM tape_batches WHERE producer >= ? AND producer < ? GROUP BY producer"
    positions |= dict(reader.query(fanouts, "fanout/", "fanout0"))
    positions |= {f"reaction {one.reaction_id}": one.position for one in read_statistics(reader)[0]}
    return [_lag_of(reader, head, name, position) for name, position in positions.items()]


def _archive(store: str, lake: str, head: Head) -> ReaderLag:
    until = ArchiveTable.open(lake).until
    return query_store(store, lambda reader: _lag_of(reader, head, "archive", until))


def _lag_of(reader: Reader, head: Head, name: str, position: int) -> ReaderLag:
    behind = max(head.global_seq - position, 0)
    if not behind:
        return ReaderLag(name, position, 0, 0)
    row = reader.one("SELECT ts_ms FROM tape_journal WHERE global_seq > ? ORDER BY global_seq LIMIT 1", position)
    now = now_ms()
    return ReaderLag(name, position, behind, max(now - row[0], 0) if row else 0)
