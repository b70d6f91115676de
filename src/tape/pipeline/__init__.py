"""The journal at scale, on Spark: `format("tape")` to read and write it, and the jobs of `tape pipeline`.

Needs the extra `spark`. Nothing else in Tape imports this room, and it imports Spark only when used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tape.errors import MissingExtra

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["register", "with_payload"]


def register(spark: SparkSession) -> None:
    """Make `format("tape")` known to a Spark session, for reading and writing, and `format("tape-messages")`."""
    try:
        from tape.pipeline import source
    except ImportError as missing:
        if (missing.name or "").split(".")[0] == "tape":
            raise
        raise MissingExtra("The data pipeline", "spark") from missing
    source.register(spark)


def with_payload(frame: DataFrame) -> DataFrame:
    """The rows of `format("tape")` with a column more: `payload`, a VARIANT of `payload_json`.

    Spark makes it where the rows are used. It is null for a payload that Spark cannot take (deeper than it parses).
    """
    from pyspark.sql import functions

    return frame.withColumn("payload", functions.try_parse_json("payload_json"))
