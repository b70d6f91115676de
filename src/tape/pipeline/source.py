"""`format("tape")`: the journal as a source of batches and streams, and as a sink of both.

tape.pipeline.register(spark)
spark.read.format("tape").option("store", "sqlite:tape.db").load()
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, MutableMapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tape.errors import JournalDataLost, PipelineInput, StoreBusy, StoreUnavailable
from tape.journal.appender import read_head
from tape.pipeline.columns import full_schema, wanted_columns
from tape.pipeline.journal_batches import ask, ask_patiently, narrowed, position_of
from tape.pipeline.messages import MessageSource
from tape.pipeline.options import ReadOptions, read_options, write_options
from tape.pipeline.selection import Selecting
from tape.pipeline.sequence import check_not_lost, oldest_entry, read_stretch
from tape.pipeline.sink import JournalStreamWriter, JournalWriter, check_columns
from tape.store import Reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

NAME = "tape"
# A part of this many entries keeps a core busy for some tenths of a second.
PART_ENTRIES = 50_000
# Of a key that stands twice in an object the last counts; Spark would refuse the object.
_DUPLICATE_KEYS = "spark.sql.variant.allowDuplicateKeys"


def register(spark: SparkSession) -> None:
    """Make `format("tape")` and `format("tape-messages")` known to a session, and let it read JSON as predicates do."""
    spark.conf.set(_DUPLICATE_KEYS, "true")
    spark.dataSource.register(TapeSource)
    spark.dataSource.register(MessageSource)


class TapeSource(DataSource):
    """The journal of one store."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(dict(options))

    @classmethod
    def name(cls) -> str:
        """What stands in `format(…)`."""
        return NAME

    def schema(self) -> StructType:
        """Every column. Give a schema of your own with fewer of them, and only those are read."""
        return full_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of what is there now."""
        return JournalReader(read_options(self.options, streaming=False), wanted_columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        """A reader of what is there and of what comes."""
        return JournalStreamReader(read_options(self.options, streaming=True), wanted_columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer that appends a DataFrame."""
        check_columns(schema)
        if overwrite:
            raise PipelineInput('The journal is append-only: use .mode("append").')
        return JournalWriter(write_options(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  (Spark's name)
        """A writer that appends what a stream gives."""
        check_columns(schema)
        if overwrite:
            raise PipelineInput('The journal is append-only: use .outputMode("append").')
        return JournalStreamWriter(write_options(self.options))


class Part(InputPartition):
    """A stretch of the journal for one task: after a global_seq, up to another."""

    def __init__(self, after: int, until: int) -> None:
        super().__init__((after, until))


def parts(after: int, until: int, at_least: int) -> list[Part]:
    """A stretch in parts of nearly the same size."""
    count = max(at_least, -(-(until - after) // PART_ENTRIES))
    count = min(count, until - after)
    edges = [after + (until - after) * index // count for index in range(count + 1)] if count else []
    return [Part(begin, end) for begin, end in pairwise(edges)]


class JournalReader(DataSourceReader):
    """Reads the journal between two offsets, filtered by the database where it can be.

    Spark asks for the parts once per DataFrame: asking it again gives the same entries, not newer ones.
    """

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns
        self._selecting = Selecting(options.subject, options.where)

    def partitions(self) -> Sequence[InputPartition]:
        """The journal from the starting to the ending offset, in parts."""
        options = self._options

        def extent(reader: Reader) -> tuple[int, int]:
            head = read_head(reader)
            oldest = oldest_entry(options, head)
            after = position_of(reader, options.starting, head, oldest)
            until = min(position_of(reader, options.ending, head, oldest), head.global_seq)
            after, until = narrowed(reader, after, until, self._selecting.bounds)
            if after < until:
                check_not_lost(options, head, after, until)
            after = max(after, oldest - 1)
            return after, max(until, after)

        return parts(*ask_patiently(options.store, extent), options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The entries of one part, on an executor."""
        return _read(self._options, self._columns, self._selecting, partition)


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the journal. The offset of a stream is the last global_seq that it has read."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns
        self._selecting = Selecting(options.subject, options.where)
        self._stop_at: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  (Spark's name)
        """Where a stream without a checkpoint begins."""

        def begin(reader: Reader) -> int:
            head = read_head(reader)
            position = position_of(reader, self._options.starting, head, oldest_entry(self._options, head))
            _check_not_beyond(position, head.global_seq)
            return position

        return {"global_seq": ask_patiently(self._options.store, begin)}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  (Spark's name)
        """`maxOffsetsPerTrigger`, if it was given."""
        limit = self._options.max_per_trigger
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  (Spark's name)
        """Remember where the journal ends now; the stream ends there."""
        self._stop_at = ask_patiently(self._options.store, read_head).global_seq

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802  (Spark's name)
        """How far the next micro-batch reads. While the database is gone, a stream stays where it is."""
        after = start["global_seq"]
        if self._stop_at is None:
            try:
                head = ask(self._options.store, read_head)
            except (StoreUnavailable, StoreBusy) as error:
                log.warning("the journal does not answer, the stream waits: %s", error)
                return start
            until = head.global_seq
            _check_not_beyond(after, until)
        else:
            until = self._stop_at
            _check_not_beyond(after, until)
        if isinstance(limit, ReadMaxRows):
            until = min(until, after + limit.max_rows)
        return {"global_seq": until}

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802  (Spark's name)
        """The head of the journal, so that progress reports show how far the stream is behind."""
        try:
            return {"global_seq": ask(self._options.store, read_head).global_seq}
        except (StoreUnavailable, StoreBusy):
            return None

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """One micro-batch in parts."""
        after, until = start["global_seq"], end["global_seq"]
        if after < until:
            head = ask_patiently(self._options.store, read_head)
            check_not_lost(self._options, head, after, until)
            after = min(max(after, oldest_entry(self._options, head) - 1), until)
            bounds = self._selecting.bounds
            after, until = ask_patiently(self._options.store, lambda reader: narrowed(reader, after, until, bounds))
        return parts(after, until, self._options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The entries of one part, on an executor."""
        return _read(self._options, self._columns, self._selecting, partition)


def _read(
    options: ReadOptions, columns: Sequence[str], selecting: Selecting, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    if partition.value is None:
        return iter(())  # Spark's stand-in where there are no parts
    after, until = partition.value
    return read_stretch(options, columns, selecting, after, until)


def _check_not_beyond(position: int, head: int) -> None:
    if position > head:
        raise JournalDataLost(
            f"The stream has read up to {position}, but the journal ends at {head}: it is another journal,"
            " or one restored from a backup. Begin with a new checkpoint."
        )
