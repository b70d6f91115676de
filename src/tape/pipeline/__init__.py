"""The Spark integration: `format("tape")` reads and writes the journal, and `tape pipeline` runs the jobs.

Requires the extra `spark`. Only the CLI imports this package, and the package imports Spark only when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tape.errors import MissingExtra

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["register", "with_payload"]


def register(spark: SparkSession) -> None:
    """Register the data sources `tape` (read and write) and `tape-messages` (read) with a Spark session."""
    try:
        from tape.pipeline import journal_source
    except ImportError as missing:
        if (missing.name or "").split(".")[0] == "tape":
            raise
        raise MissingExtra("The data pipeline", "spark") from missing
    journal_source.register(spark)


def with_payload(frame: DataFrame) -> DataFrame:
    """Add the column `payload` to the rows of `format("tape")`: `payload_json` as a VARIANT.

    Spark evaluates it lazily. It is null where Spark cannot parse the payload, for example because of its depth.
    """
    from pyspark.sql import functions

    return frame.withColumn("payload", functions.try_parse_json("payload_json"))
