"""`ingest`: files of JSON lines, Parquet or any other source of Spark into the journal, once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812  (what everybody calls it)

from tape.errors import PipelineInput
from tape.pipeline.options import resolve_store
from tape.pipeline.sink import FIELDS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def drafts(rows: DataFrame, mapping: Mapping[str, str], unique: str = "") -> DataFrame:
    """Rows as the journal takes them: fields by SQL expressions, the whole row as payload unless it is mapped."""
    for field in mapping:
        if field not in FIELDS:
            raise PipelineInput(f"--map {field}=… names no field of an entry; known are {', '.join(FIELDS)}.")
    if "subject" not in mapping:
        raise PipelineInput(
            "--map subject=… is missing, for example: --map \"subject=concat('/tape/order/created/', id)\""
        )
    if unique:
        if unique not in rows.columns:
            raise PipelineInput(f"--unique {unique!r} is no column of the input; it has {', '.join(rows.columns)}.")
        rows = rows.dropDuplicates([unique])
    expressions = {"payload_json": "to_json(struct(*))"} | dict(mapping)
    try:
        return rows.select(*(_typed(field, text) for field, text in expressions.items()))
    except PySparkException as error:
        raise PipelineInput(f"The mapping cannot be used: {str(error).splitlines()[0]}") from error


def _typed(field: str, text: str) -> Column:
    return F.expr(text).cast("int" if field == "schema_version" else "string").alias(field)


def ingest(
    spark: SparkSession,
    store: str,
    path: str,
    mapping: Mapping[str, str],
    *,
    source: str = "json",
    unique: str = "",
    producer: str = "ingest",
    batch_id: str = "",
) -> int:
    """Append the rows of files; a repetition with the same producer and batch id appends nothing.

    Without a batch id the path is one. Returns how many rows the input has as entries.
    """
    try:
        rows = spark.read.format(source).load(path)
    except PySparkException as error:
        raise PipelineInput(f"{path} cannot be read as {source}: {str(error).splitlines()[0]}") from error
    made = drafts(rows, mapping, unique)
    writer = made.write.format("tape").mode("append").option("store", resolve_store(store))
    writer.option("producer", producer).option("batchId", batch_id or path).save()
    return made.count()


if __name__ == "__main__":
    from tape.pipeline.jobs.command import main

    main("ingest")
