"""`format("tape")`: the journal as a Spark data source and sink, for batches and streams.

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
from tape.pipeline.combined_reader import check_data_loss, oldest_entry, read_range
from tape.pipeline.journal_reader import (
    narrow_range,
    position_of,
    query_store,
    query_store_once,
    read_head_and_holes,
    report_divergence,
)
from tape.pipeline.journal_writer import JournalStreamWriter, JournalWriter, check_columns
from tape.pipeline.message_source import MessageSource
from tape.pipeline.options import ReadOptions, read_options, write_options
from tape.pipeline.selection import EntrySelection
from tape.store import Reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

NAME = "tape"
# A task needs some tenths of a second for a partition of this size.
PARTITION_ENTRIES = 50_000
# Of duplicate keys in an object the last one counts, as in predicates; by default Spark rejects the object.
_DUPLICATE_KEYS = "spark.sql.variant.allowDuplicateKeys"


def register(spark: SparkSession) -> None:
    """Register `tape` and `tape-messages` with a session, and make it parse JSON as predicates do."""
    spark.conf.set(_DUPLICATE_KEYS, "true")
    spark.dataSource.register(TapeSource)
    spark.dataSource.register(MessageSource)


class TapeSource(DataSource):
    """The data source of one store's journal."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(dict(options))

    @classmethod
    def name(cls) -> str:
        """The name for `format(…)`."""
        return NAME

    def schema(self) -> StructType:
        """All columns. With a user schema of fewer columns, only those are read."""
        return full_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the entries that exist now."""
        return JournalReader(read_options(self.options, streaming=False), wanted_columns(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        """Return a reader that follows the journal."""
        return JournalStreamReader(read_options(self.options, streaming=True), wanted_columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer that appends a DataFrame."""
        check_columns(schema)
        if overwrite:
            raise PipelineInput('The journal is append-only: use .mode("append").')
        return JournalWriter(write_options(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  (Spark's name)
        """Return a writer that appends the micro-batches of a stream."""
        check_columns(schema)
        if overwrite:
            raise PipelineInput('The journal is append-only: use .outputMode("append").')
        return JournalStreamWriter(write_options(self.options))


class JournalPartition(InputPartition):
    """A range of the journal for one task: after a global_seq, up to and including another."""

    def __init__(self, after: int, until: int) -> None:
        super().__init__((after, until))


def split_range(after: int, until: int, at_least: int) -> list[JournalPartition]:
    """Split a range into partitions of nearly the same size."""
    count = max(at_least, -(-(until - after) // PARTITION_ENTRIES))
    count = min(count, until - after)
    edges = [after + (until - after) * index // count for index in range(count + 1)] if count else []
    return [JournalPartition(find_start, end) for find_start, end in pairwise(edges)]


class JournalReader(DataSourceReader):
    """Reads the journal between two offsets; the database filters where it can.

    Spark asks for the partitions once per DataFrame, so a DataFrame returns the same entries each time.
    """

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns
        self._selection = EntrySelection(options.subject, options.where)

    def partitions(self) -> Sequence[InputPartition]:
        """Split the journal from the starting to the ending offset into partitions."""
        options = self._options

        def find_range(reader: Reader) -> tuple[int, int]:
            head = read_head(reader)
            oldest = oldest_entry(options, head)
            after = position_of(reader, options.starting, head, oldest)
            until = min(position_of(reader, options.ending, head, oldest), head.global_seq)
            after, until = narrow_range(reader, after, until, self._selection.bounds)
            if after < until:
                check_data_loss(options, head, after, until)
            after = max(after, oldest - 1)
            return after, max(until, after)

        return split_range(*query_store(options.store, find_range), options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the entries of one partition, on an executor."""
        return _read_partition(self._options, self._columns, self._selection, partition)


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the journal. The offset of a stream is the last global_seq that it has read."""

    def __init__(self, options: ReadOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns
        self._selection = EntrySelection(options.subject, options.where)
        self._stop_at: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  (Spark's name)
        """Return the offset where a stream without a checkpoint starts."""

        def find_start(reader: Reader) -> int:
            head = read_head(reader)
            position = position_of(reader, self._options.starting, head, oldest_entry(self._options, head))
            _check_not_beyond(position, head.global_seq)
            return position

        return {"global_seq": query_store(self._options.store, find_start)}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  (Spark's name)
        """Return the limit of the option `maxOffsetsPerTrigger`."""
        limit = self._options.max_per_trigger
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  (Spark's name)
        """Record the head of the journal; the stream ends there."""
        self._stop_at = query_store(self._options.store, read_head).global_seq

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802  (Spark's name)
        """Return the end of the next micro-batch; while the database is unavailable, the start."""
        after = start["global_seq"]
        if self._stop_at is None:
            try:
                head = query_store_once(self._options.store, read_head)
            except (StoreUnavailable, StoreBusy) as error:
                log.warning("journal unavailable, the stream waits: %s", error)
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
        """Return the head of the journal, for the lag in progress reports."""
        try:
            return {"global_seq": query_store_once(self._options.store, read_head).global_seq}
        except (StoreUnavailable, StoreBusy):
            return None

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Split one micro-batch into partitions."""
        after, until = start["global_seq"], end["global_seq"]
        if after < until:
            head, holes = query_store(self._options.store, read_head_and_holes)
            check_data_loss(self._options, head, after, until)
            report_divergence(after, holes, self._options.fail_on_data_loss)
            after = min(max(after, oldest_entry(self._options, head) - 1), until)
            bounds = self._selection.bounds
            after, until = query_store(self._options.store, lambda reader: narrow_range(reader, after, until, bounds))
        return split_range(after, until, self._options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the entries of one partition, on an executor."""
        return _read_partition(self._options, self._columns, self._selection, partition)


def _read_partition(
    options: ReadOptions, columns: Sequence[str], selection: EntrySelection, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    if partition.value is None:
        return iter(())  # Spark's placeholder if there are no partitions
    after, until = partition.value
    return read_range(options, columns, selection, after, until)


def _check_not_beyond(position: int, head: int) -> None:
    if position > head:
        raise JournalDataLost(
            f"The stream has read up to {position}, but the journal ends at {head}: it is another journal,"
            " or one restored from a backup. Begin with a new checkpoint."
        )
