"""What began and what ended: effects from pending to settled, runs from their start to their end.

A span lasts from the first entry that begins it to the first one after that which ends it. That is said of the order
of the journal alone: however the journal is cut into rounds, the same spans come out, as long as what was open at a
cut is put in front of the next round.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  (what everybody calls it)

from tape.engine.ledgers.histogram import Histogram, bucket_sql
from tape.engine.ledgers.rollups import DurationRollup, OpenInterval
from tape.model.subject import decode, encode

# What an entry has to have to be one of a span.
COLUMNS = "global_seq long, ts_ms long, tenant string, run_id string, type string, subject string, payload_json string"
EFFECT, RUN = "effect", "run"
BEGINNINGS = {"effect.pending": EFFECT, "run.running": RUN}
ENDS = {
    "effect.confirmed": EFFECT,
    "effect.failed": EFFECT,
    "effect.reconciled": EFFECT,
    "run.terminal": RUN,
    "run.failed": RUN,
    "run.cancelled": RUN,
    "run.stuck": RUN,
}
TYPES = (*BEGINNINGS, *ENDS)
# A name longer than this is kept as its hash: databases do not index long texts.
MAX_NAME = 500

_KEY = ("run_id", "measure", "name")
_MOMENT = (*_KEY, "global_seq", "ts_ms", "tenant", "tool", "outcome")


def marked(entries: DataFrame) -> DataFrame:
    """Entries as they are counted: their tool, still percent-encoded, their bytes, and what they begin or end.

    What neither begins nor ends anything has no `measure`; what begins something has no `outcome`.
    """
    # /tape/<kind>/<verb>/<tool>/…, after an empty first part.
    kind, verb, tool = (F.try_element_at(F.split("subject", "/"), F.lit(place)) for place in (3, 4, 5))
    resolved = F.get_json_object("payload_json", "$.resolved_to")
    found = F.when(resolved == "2", "confirmed").when(resolved == "3", "failed")
    is_beginning, is_end = F.col("type").isin(*BEGINNINGS), F.col("type").isin(*ENDS)
    outcome = F.when(is_end, F.when(verb == "reconciled", found).otherwise(verb))
    name = F.coalesce(F.get_json_object("payload_json", "$.idempotency_key"), F.lit(""))
    is_unwieldy = (F.length(name) > MAX_NAME) | name.contains("\0")
    return entries.select(
        *("global_seq", "ts_ms", "tenant", "run_id", "type"),
        F.coalesce(kind, F.lit("")).alias("kind"),
        F.when(kind.isin("effect", "policy"), F.coalesce(tool, F.lit(""))).otherwise("").alias("tool"),
        F.octet_length("payload_json").cast("long").alias("bytes"),
        # Somebody may have looked and still not know: neither a beginning nor an end.
        F.when(is_beginning | outcome.isNotNull(), kind).alias("measure"),
        F.when(kind == EFFECT, F.when(is_unwieldy, F.sha2(name, 256)).otherwise(name)).otherwise("").alias("name"),
        outcome.alias("outcome"),
    )


def moments(entries: DataFrame) -> DataFrame:
    """The beginnings and ends among marked entries."""
    return entries.where("measure IS NOT NULL").select(*_MOMENT)


def with_open(spark: SparkSession, found: DataFrame, still_open: Sequence[OpenInterval]) -> DataFrame:
    """Moments with the beginnings from before them that have not ended yet."""
    if not still_open:
        return found
    rows = [{**msgspec.structs.asdict(one), "tool": encode(one.tool) if one.tool else ""} for one in still_open]
    before = spark.createDataFrame(pa.Table.from_pylist(rows))
    return found.unionByName(before.withColumn("outcome", F.lit(None).cast("string")))


def spans(found: DataFrame) -> DataFrame:
    """One row a span: its key, when it `began` and how it `ended`, each null where that is not known (yet)."""
    earlier = Window.partitionBy(*_KEY).orderBy("global_seq").rowsBetween(Window.unboundedPreceding, -1)
    ended = F.count("outcome").over(earlier)
    moment = F.struct("global_seq", "ts_ms", "tenant", "tool", "outcome")
    return (
        found.withColumn("cycle", ended)
        .groupBy(*_KEY, "cycle")
        .agg(
            F.min(F.when(F.col("outcome").isNull(), moment)).alias("began"),
            F.max(F.when(F.col("outcome").isNotNull(), moment)).alias("ended"),
        )
    )


def duration_of() -> Column:
    """How long a span took, in ms; null if that is not known."""
    took = F.col("ended.ts_ms") - F.col("began.ts_ms")
    return F.when(took < 0, 0).otherwise(took)


def durations(found: DataFrame, width_ms: int) -> list[DurationRollup]:
    """How long spans took, by the window in which they ended, and by whose and which they were: as the end says."""
    timed = found.where("ended IS NOT NULL").select("measure", "ended.*", duration_of().alias("ms"))
    timed = timed.withColumn("start_ms", window_of("ts_ms", width_ms)).withColumn("bucket", F.expr(bucket_sql("ms")))
    sums = (F.count("*").alias("n"), F.sum("ms").alias("total"), F.min("ms").alias("least"), F.max("ms").alias("most"))
    took: dict[tuple[int, str, str, str, str], Histogram] = defaultdict(Histogram)
    unpaired: dict[tuple[int, str, str, str, str], int] = defaultdict(int)
    for row in timed.groupBy("start_ms", "tenant", "measure", "tool", "outcome", "bucket").agg(*sums).collect():
        key = (row["start_ms"], row["tenant"], row["measure"], tool_of(row), row["outcome"])
        if row["bucket"] is None:
            unpaired[key] += row["n"]
        else:
            took[key].add(Histogram(row["n"], row["total"], row["least"], row["most"], {row["bucket"]: row["n"]}))
    return [DurationRollup(*key, took[key], unpaired[key]) for key in {**took, **unpaired}]


def window_of(column: str, width_ms: int) -> Column:
    """When the window began that a time in ms falls into."""
    return (F.floor(F.col(column) / width_ms) * width_ms).cast("long")


def tool_of(row: Row) -> str:
    """The tool of a row, as people call it."""
    return decode(row["tool"]) if row["tool"] else ""
