"""`ingest --stream`: any streaming source of Spark into the journal, each micro-batch once.

The checkpoint is Spark's, with a note beside it that says which options it was begun with. Duplicates within the
watermark are dropped by Spark, all others by the store, which remembers ids.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import functions as F  # noqa: N812  (what everybody calls it)

from tape.archive.location import resolve_url
from tape.errors import PipelineInput
from tape.pipeline.batches import finish_batches
from tape.pipeline.checkpoints import Checkpoint, begun_with
from tape.pipeline.job_context import Running
from tape.pipeline.jobs.ingest import Ingested, Ingesting, readable
from tape.pipeline.options import shown
from tape.pipeline.row_mapping import WATERMARK
from tape.pipeline.stream_progress import listening, wait_for_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VERSION = 1


class Streaming(msgspec.Struct, frozen=True):
    """How a source is read: its format, columns and options; `watermark` is a column and how late it may be."""

    source: str = "json"
    schema: str = ""
    options: dict[str, str] = {}
    watermark: str = ""
    follow: bool = False


def ingest_stream(
    spark: SparkSession, job: Ingesting, path: str, checkpoint: str, running: Running, how: Streaming
) -> Ingested:
    """Append what is there and was not read yet; with `follow`, go on until told to stop. What this run has done."""
    job, checkpoint = job.resolved(), resolve_url(checkpoint)
    producer = f"{job.producer}/{_stream_id(job, path, checkpoint, how)}"
    rows = _distinct(_rows(spark, path, how), job.unique, how.watermark)
    job.prepared(rows)  # a mistake in the mapping is told before the query begins
    done = Ingested()

    def take(batch: DataFrame, number: int) -> None:
        finish_batches(job.store, producer)
        one = job.take(batch, producer, str(number), number)
        done.add(one)
        running.noted("duplicates", one.duplicates)
        running.noted("rejected", one.rejected, one.reason)
        running.noted("forgotten", one.forgotten)

    writer = rows.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint).queryName(job.producer)
    with listening(spark, running) as listener:
        query = (writer if how.follow else writer.trigger(availableNow=True)).start()
        wait_for_end(query, running)
        listener.hear_out(query)
    return done


def _rows(spark: SparkSession, path: str, how: Streaming) -> DataFrame:
    with readable(path, how.source):
        schema = how.schema
        if not schema and path:
            found = spark.read.format(how.source).options(**how.options).load(path)
            schema = found.schema  # type: ignore[assignment]  # Spark takes both
        reader = spark.readStream.format(how.source).options(**how.options)
        reader = reader.schema(schema) if schema else reader
        return reader.load(path) if path else reader.load()


def _distinct(rows: DataFrame, unique: str, watermark: str) -> DataFrame:
    if not watermark:
        return rows
    column, sign, delay = watermark.partition("=")
    if not sign or not unique:
        raise PipelineInput(f"--watermark {watermark!r} must look like at=10 minutes, and goes with --unique.")
    if column not in rows.columns:
        raise PipelineInput(f"--watermark {column!r} is no column of the input; it has {', '.join(rows.columns)}.")
    timed = rows.withColumn(WATERMARK, F.to_timestamp(F.col(f"`{column}`"))).withWatermark(WATERMARK, delay)
    return timed.dropDuplicatesWithinWatermark([unique]).drop(WATERMARK)


def _stream_id(job: Ingesting, path: str, checkpoint: str, how: Streaming) -> str:
    """The id of the stream that a checkpoint is of, made with it. Raises CheckpointRefused if it has other options."""
    options: dict[str, Any] = {"store": shown(job.store), "path": path, "format": how.source}
    options |= {"producer": job.producer, "unique": job.unique, "watermark": how.watermark}
    options |= {"map": job.mapping.map, "template": job.mapping.template}
    wanted = Checkpoint("ingest", checkpoint, VERSION, options, 0, {"id": uuid.uuid4().hex})
    return str(begun_with(checkpoint, wanted).state["id"])
