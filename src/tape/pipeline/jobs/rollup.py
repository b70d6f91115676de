"""`rollup`: counts per tenant, type and minute, hour and day, kept in the store beside the journal."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  (what everybody calls it)

from tape.journal.page import read_head
from tape.pipeline.batches import transact
from tape.pipeline.hot import ask_patiently
from tape.pipeline.options import resolve_store
from tape.pipeline.rollups import WIDTHS_MS, Rollup, add_rollups, rolled_up_to
from tape.pipeline.running import Running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUND_ENTRIES = 1_000_000
PAUSE_S = 1.0
_SCHEMA = "global_seq long, ts_ms long, tenant string, type string, payload_json string"


def rollup(
    spark: SparkSession, store: str, running: Running, *, follow: bool = False, round_entries: int = ROUND_ENTRIES
) -> int:
    """Count what is not counted yet; the number of entries that were. With `follow`, until told to stop."""
    store = resolve_store(store)
    transact(store, lambda tx: None)  # an old database is told to migrate before anything is read
    done = 0
    while not running.is_stopping:
        head, position = ask_patiently(store, lambda reader: (read_head(reader), rolled_up_to(reader)))
        # A journal that was pruned before its first rollup is counted from its oldest entry.
        after = position or head.oldest - 1
        until = min(head.global_seq, after + round_entries)
        if after >= until:
            if not follow:
                break
            running.wait(PAUSE_S)
            continue
        started = time.monotonic()
        minutes = _minutes(spark, store, after, until)
        if transact(store, partial(add_rollups, minutes=minutes, after=position, until=until)):
            done += until - after
            running.told(until - after, until, head.global_seq, time.monotonic() - started)
    return done


def _minutes(spark: SparkSession, store: str, after: int, until: int) -> list[Rollup]:
    reader = spark.read.format("tape").schema(_SCHEMA).option("store", store)
    entries = reader.option("startingOffsets", after).option("endingOffsets", until).load()
    width = WIDTHS_MS["minute"]
    start = (F.floor(F.col("ts_ms") / width) * width).cast("long").alias("start_ms")
    sums = (F.count("*").alias("entries"), F.sum(F.octet_length("payload_json")).cast("long").alias("bytes"))
    return [Rollup(**row.asDict()) for row in entries.groupBy(start, "tenant", "type").agg(*sums).collect()]


if __name__ == "__main__":
    from tape.pipeline.jobs.command import main

    main("rollup")
