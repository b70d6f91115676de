"""Writing to `format("tape")`: rows become drafts on the executors and are appended exactly once."""

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
from tape.pipeline.batches import Stage, append_batch, append_once, discard, stage
from tape.pipeline.columns import COLUMNS
from tape.pipeline.options import WriteOptions

FIELDS = Draft.__struct_fields__
_GIVEN_OUT = set(COLUMNS) - set(FIELDS)


class Staged(WriterCommitMessage):
    """What a task tells the driver: the stage that holds its rows."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage


def check_columns(schema: StructType) -> None:
    """Raise PipelineInput unless rows of this schema can become entries."""
    for field in schema.fields:
        if field.name in _GIVEN_OUT:
            raise PipelineInput(f"The column {field.name!r} is given out by the journal: drop it before writing.")
        if field.name not in FIELDS:
            raise PipelineInput(f"The journal has no column {field.name!r}; it takes {', '.join(FIELDS)}.")
        is_number = field.name == "schema_version"
        if not isinstance(field.dataType, (IntegerType, LongType, ShortType) if is_number else StringType):
            wanted = "an integer" if is_number else "a string; to_json() makes one of a struct"
            raise PipelineInput(f"The column {field.name!r} is {field.dataType.simpleString()}; it must be {wanted}.")
    if "subject" not in schema.fieldNames():
        raise PipelineInput("There is no column 'subject'. Every entry needs one, for example /tape/order/created/42.")


def drafts_of(batches: Iterator[pa.RecordBatch]) -> Iterator[Draft]:
    """The rows as checked drafts; null stands for a field's default."""
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


class _Staging:
    """What the batch writer and the stream writer share."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Check and stage the rows of one task, on an executor."""
        return Staged(stage(self._options.store, drafts_of(iterator)))

    def _throw_away(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        discard(self._options.store, [one.name for one in stages_of(messages)])


class JournalWriter(_Staging, DataSourceArrowWriter):
    """Appends a DataFrame as one batch. With `producer` and `batchId` a repetition appends nothing."""

    def __init__(self, options: WriteOptions) -> None:
        super().__init__(options)
        if bool(options.producer) != bool(options.batch_id):
            raise PipelineInput(
                "producer and batchId go together: give both to make a repeated write harmless, or none."
            )
        check_id("producer", options.producer)
        check_id("batchId", options.batch_id)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append what the tasks have staged."""
        options, stages = self._options, stages_of(messages)
        if options.producer:
            append_batch(options.store, options.producer, options.batch_id, stages)
        else:
            append_once(options.store, stages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Throw it away."""
        self._throw_away(messages)


class JournalStreamWriter(_Staging, DataSourceStreamArrowWriter):
    """Appends micro-batches, each once. The producer is the query's id unless it was named."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  (Spark's name)
        """Append what the tasks have staged; Spark may ask for the same batch again after a crash."""
        producer = self._options.producer or f"spark-{query_id(self._options.checkpoint)}"
        append_batch(self._options.store, producer, str(batchId), stages_of(messages), number=batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  (Spark's name)
        """Throw it away; the batch will come again."""
        self._throw_away(messages)


def stages_of(messages: Sequence[WriterCommitMessage | None]) -> list[Stage]:
    """The stages that tasks report; a task without a message had nothing or failed."""
    return [message.stage for message in messages if isinstance(message, Staged)]


def query_id(checkpoint: str) -> str:
    """The id of the query that a checkpoint belongs to: it outlives restarts and never comes twice."""
    address = urlsplit(checkpoint)
    path = Path(unquote(address.path) if address.scheme == "file" else checkpoint, "metadata")
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])["id"]
    except (OSError, KeyError, msgspec.MsgspecError) as error:
        raise PipelineInput(
            f"The query's id cannot be read from its checkpoint {checkpoint!r} ({error}). Name the stream yourself:"
            ' .option("producer", "…"), another name for every new checkpoint.'
        ) from error
