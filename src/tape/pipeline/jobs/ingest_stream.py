"""`ingest --stream`: appends any streaming source of Spark to the journal, each micro-batch once.

The checkpoint is Spark's, with the file tape.json that binds it to the job's options. Spark drops duplicates within
the watermark; the store drops all others by id.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import functions as F  # noqa: N812  (the usual name)

from tape.archive.location import resolve_url
from tape.errors import PipelineInput
from tape.pipeline.batch_writer import finish_batches
from tape.pipeline.checkpoints import Checkpoint, bind_checkpoint
from tape.pipeline.job_context import JobContext
from tape.pipeline.jobs.ingest import IngestJob, IngestTotals, translate_read_errors
from tape.pipeline.options import shown
from tape.pipeline.row_mapping import WATERMARK
from tape.pipeline.stream_progress import listen_to_progress, wait_for_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VERSION = 1


class StreamInput(msgspec.Struct, frozen=True):
    """How to read the source: format, schema and options; `watermark` is a column and its delay."""

    source: str = "json"
    schema: str = ""
    options: dict[str, str] = {}
    watermark: str = ""
    follow: bool = False


def ingest_stream(
    spark: SparkSession, job: IngestJob, path: str, checkpoint: str, context: JobContext, source_options: StreamInput
) -> IngestTotals:
    """Append the rows after the checkpoint, with `follow` until stopped; return the totals of this run."""
    job, checkpoint = job.resolved(), resolve_url(checkpoint)
    producer = f"{job.producer}/{_stream_id(job, path, checkpoint, source_options)}"
    rows = _distinct(_rows(spark, path, source_options), job.unique, source_options.watermark)
    job.prepared(rows)  # raises an error of the mapping before the query starts
    done = IngestTotals()

    def take(batch: DataFrame, number: int) -> None:
        finish_batches(job.store, producer)
        one = job.append(batch, producer, str(number), number)
        done.add(one)
        context.report_count("duplicates", one.duplicates)
        context.report_count("rejected", one.rejected, one.reason)
        context.report_count("forgotten", one.forgotten)

    writer = rows.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint).queryName(job.producer)
    with listen_to_progress(spark, context) as listener:
        query = (writer if source_options.follow else writer.trigger(availableNow=True)).start()
        wait_for_end(query, context)
        listener.wait_for_progress(query)
    return done


def _rows(spark: SparkSession, path: str, source_options: StreamInput) -> DataFrame:
    with translate_read_errors(path, source_options.source):
        schema = source_options.schema
        if not schema and path:
            found = spark.read.format(source_options.source).options(**source_options.options).load(path)
            schema = found.schema  # type: ignore[assignment]  # Spark accepts both
        reader = spark.readStream.format(source_options.source).options(**source_options.options)
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


def _stream_id(job: IngestJob, path: str, checkpoint: str, source_options: StreamInput) -> str:
    """Return the id of the stream, which is stored in its checkpoint. Raises CheckpointRefused for other options."""
    options: dict[str, Any] = {"store": shown(job.store), "path": path, "format": source_options.source}
    options |= {"producer": job.producer, "unique": job.unique, "watermark": source_options.watermark}
    options |= {"map": job.mapping.map, "template": job.mapping.template}
    wanted = Checkpoint("ingest", checkpoint, VERSION, options, 0, {"id": uuid.uuid4().hex})
    return str(bind_checkpoint(checkpoint, wanted).state["id"])
