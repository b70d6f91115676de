"""Spans of effects, from pending to settled, and of runs, from start to end.

A span lasts from the first entry that begins it to the next entry that ends it, in journal order. The spans do not
depend on how the journal is split into rounds, as long as each round starts with the spans that are still open.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  (the usual name)

from tape.engine.ledgers.histogram import Histogram, bucket_sql
from tape.engine.ledgers.rollups import DurationRollup, OpenInterval
from tape.model.subject import decode, encode

# The columns that spans are computed from.
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
# A longer name is replaced by its hash, because databases do not index long texts.
MAX_NAME = 500

KEY = ("run_id", "tenant", "measure", "name")
_MOMENT = (*KEY, "global_seq", "ts_ms", "tool", "outcome")


def marked(entries: DataFrame) -> DataFrame:
    """Add to entries their tool (percent-encoded), the size of the payload, and the span that they begin or end.

    An entry that neither begins nor ends a span has no `measure`; one that begins a span has no `outcome`.
    """
    # /tape/<kind>/<verb>/<tool>/…; the first element is empty.
    kind, verb, tool = (F.try_element_at(F.split("subject", "/"), F.lit(index)) for index in (3, 4, 5))
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
        # A reconciliation without a result neither begins nor ends a span.
        F.when(is_beginning | outcome.isNotNull(), kind).alias("measure"),
        F.when(kind == EFFECT, F.when(is_unwieldy, F.sha2(name, 256)).otherwise(name)).otherwise("").alias("name"),
        outcome.alias("outcome"),
    )


def moments(entries: DataFrame) -> DataFrame:
    """Return the entries that begin or end a span."""
    return entries.where("measure IS NOT NULL").select(*_MOMENT)


def with_open(spark: SparkSession, found: DataFrame, still_open: Sequence[OpenInterval]) -> DataFrame:
    """Add the beginnings of spans that were open before these moments."""
    if not still_open:
        return found
    rows = [{**msgspec.structs.asdict(one), "tool": encode(one.tool) if one.tool else ""} for one in still_open]
    before = spark.createDataFrame(pa.Table.from_pylist(rows))
    return found.unionByName(before.withColumn("outcome", F.lit(None).cast("string")))


def spans(found: DataFrame) -> DataFrame:
    """Return one row per span: its key, when it `began` and how it `ended`, each null if unknown."""
    earlier = Window.partitionBy(*KEY).orderBy("global_seq").rowsBetween(Window.unboundedPreceding, -1)
    ended = F.count("outcome").over(earlier)
    moment = F.struct("global_seq", "ts_ms", "tool", "outcome")
    return (
        found.withColumn("cycle", ended)
        .groupBy(*KEY, "cycle")
        .agg(
            F.min(F.when(F.col("outcome").isNull(), moment)).alias("began"),
            F.max(F.when(F.col("outcome").isNotNull(), moment)).alias("ended"),
        )
    )


def duration_of() -> Column:
    """The duration of a span in ms; null if unknown."""
    took = F.col("ended.ts_ms") - F.col("began.ts_ms")
    return F.when(took < 0, 0).otherwise(took)


def durations(found: DataFrame, width_ms: int) -> list[DurationRollup]:
    """Return the durations of spans, by the window in which they ended, and by tenant, tool and outcome."""
    timed = found.where("ended IS NOT NULL").select("tenant", "measure", "ended.*", duration_of().alias("ms"))
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
    """The start of the window that contains a time in ms."""
    return (F.floor(F.col(column) / width_ms) * width_ms).cast("long")


def tool_of(row: Row) -> str:
    """Return the decoded tool name of a row."""
    return decode(row["tool"]) if row["tool"] else ""
