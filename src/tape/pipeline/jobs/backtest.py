"""`backtest`: what a reaction would have done over history: how often it would have fired, when, for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as F  # noqa: N812  (what everybody calls it)

from tape.archive.places import resolved
from tape.pipeline.matching import matching
from tape.pipeline.options import resolve_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SAMPLES = 5


class Hour(msgspec.Struct, frozen=True):
    """How often in one hour (UTC), for one tenant."""

    hour: str
    tenant: str
    fired: int


class Sample(msgspec.Struct, frozen=True):
    """An entry that would have fired."""

    global_seq: int
    subject: str
    payload_json: str


class Backtest(msgspec.Struct, frozen=True):
    """The outcome: entries looked at, times fired, per hour and tenant, and the first few."""

    entries: int
    fired: int
    hours: list[Hour]
    samples: list[Sample]


def history(
    spark: SparkSession, store: str, subject: str, since: str = "earliest", until: str = "latest", lake: str = ""
) -> DataFrame:
    """The entries of a stretch of the journal, and of its archive, under a subject pattern."""
    reader = spark.read.format("tape").option("store", resolve_store(store)).option("subject", subject)
    reader = reader.option("minPartitions", spark.sparkContext.defaultParallelism)
    if lake:
        reader = reader.option("lake", resolved(lake))
    return reader.option("startingOffsets", since).option("endingOffsets", until).load()


def backtest(entries: DataFrame, where: str, samples: int = SAMPLES) -> Backtest:
    """Match entries as a reaction with this predicate would, and create nothing."""
    found = matching(entries, where).select("global_seq", "ts", "tenant", "subject", "payload_json").cache()
    try:
        hour = F.date_format(F.date_trunc("hour", "ts"), "yyyy-MM-dd'T'HH:00'Z'")
        grouped = found.groupBy(hour.alias("hour"), "tenant").agg(F.count("*").alias("fired"))
        hours = [Hour(**row.asDict()) for row in grouped.orderBy("hour", "tenant").collect()]
        first = found.orderBy("global_seq").limit(samples).select("global_seq", "subject", "payload_json")
        return Backtest(
            entries=entries.count(),
            fired=sum(hour.fired for hour in hours),
            hours=hours,
            samples=[Sample(**row.asDict()) for row in first.collect()],
        )
    finally:
        found.unpersist()


if __name__ == "__main__":
    from tape.pipeline.jobs.command import main

    main("backtest")
