"""The writers of `format("tape")`: executors turn rows into drafts, the driver appends them exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import IntegerType, LongType, ShortType, StringType, StructType

from tape.errors import InvalidInput, PipelineInput
from tape.model.entry import Draft, check_id, checked
from tape.model.reserved import refuse_reserved
from tape.pipeline.batch_writer import StagedDrafts, append_batch, append_once, discard, stage
from tape.pipeline.columns import COLUMNS
from tape.pipeline.options import WriteOptions

FIELDS = Draft.__struct_fields__
_ASSIGNED = set(COLUMNS) - set(FIELDS)


class StagedCommit(WriterCommitMessage):
    """The commit message of a task: the name under which its drafts are staged."""

    def __init__(self, stage: StagedDrafts) -> None:
        self.stage = stage


def check_columns(schema: StructType) -> None:
    """Raise PipelineInput unless rows of this schema can be entries."""
    for field in schema.fields:
        if field.name in _ASSIGNED:
            raise PipelineInput(f"The column {field.name!r} is assigned by the journal: drop it before writing.")
        if field.name not in FIELDS:
            raise PipelineInput(f"The journal has no column {field.name!r}; it takes {', '.join(FIELDS)}.")
        is_number = field.name == "schema_version"
        if not isinstance(field.dataType, (IntegerType, LongType, ShortType) if is_number else StringType):
            wanted = "an integer" if is_number else "a string; to_json() makes one of a struct"
            raise PipelineInput(f"The column {field.name!r} is {field.dataType.simpleString()}; it must be {wanted}.")
    if "subject" not in schema.fieldNames():
        raise PipelineInput("There is no column 'subject'. Every entry needs one, for example /tape/order/created/42.")


def drafts_of(batches: Iterator[pa.RecordBatch]) -> Iterator[Draft]:
    """Yield the rows as validated drafts; null is the default of a field."""
    position = 0
    for batch in batches:
        for row in batch.to_pylist():
            position += 1
            fields: dict[str, Any] = {name: value for name, value in row.items() if value is not None}
            try:
                if "subject" not in fields:
                    raise InvalidInput("subject is null; every entry needs one.")
                draft = checked(Draft(**fields))
                refuse_reserved(draft)
                yield draft
            except InvalidInput as error:
                raise type(error)(f"Row {position} of the task: {error}") from error


class _StagingWriter:
    """The base of the batch writer and the stream writer."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedCommit:
        """Validate and stage the rows of one task, on an executor."""
        return StagedCommit(stage(self._options.store, drafts_of(iterator)))

    def _discard(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        discard(self._options.store, [one.name for one in stages_of(messages)])


class JournalWriter(_StagingWriter, DataSourceArrowWriter):
    """Appends a DataFrame as one batch. With `producer` and `batchId`, a retried write appends nothing."""

    def __init__(self, options: WriteOptions) -> None:
        super().__init__(options)
        if bool(options.producer) != bool(options.batch_id):
            raise PipelineInput(
                "producer and batchId go together: give both to make a retried write idempotent, or none."
            )
        check_id("producer", options.producer)
        check_id("batchId", options.batch_id)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append the drafts that the tasks have staged."""
        options, stages = self._options, stages_of(messages)
        if options.producer:
            append_batch(options.store, options.producer, options.batch_id, stages)
        else:
            append_once(options.store, stages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Discard the staged drafts."""
        self._discard(messages)


class JournalStreamWriter(_StagingWriter, DataSourceStreamArrowWriter):
    """Appends micro-batches, each once. By default the producer is the id of the query."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  (Spark's name)
        """Append the drafts that the tasks have staged; after a crash Spark may commit the same batch again."""
        producer = self._options.producer or f"spark-{query_id(self._options.checkpoint)}"
        append_batch(self._options.store, producer, str(batchId), stages_of(messages), number=batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  (Spark's name)
        """Discard the staged drafts; Spark retries the batch."""
        self._discard(messages)


def stages_of(messages: Sequence[WriterCommitMessage | None]) -> list[StagedDrafts]:
    """Return what the tasks have staged; a task without a message had no rows or failed."""
    return [message.stage for message in messages if isinstance(message, StagedCommit)]


def query_id(checkpoint: str) -> str:
    """Return the id of the query that a checkpoint belongs to: unique, and stable across restarts."""
    address = urlsplit(checkpoint)
    path = Path(unquote(address.path) if address.scheme == "file" else checkpoint, "metadata")
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])["id"]
    except (OSError, KeyError, msgspec.MsgspecError) as error:
        raise PipelineInput(
            f"The query's id cannot be read from its checkpoint {checkpoint!r} ({error}). Name the stream yourself:"
            ' .option("producer", "…"), another name for every new checkpoint.'
        ) from error
