"""`archive`: copies the journal into the archive exactly once, so that pruned entries can still be read."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from tape.archive.compaction import compact
from tape.archive.files import ArchiveFile, write_files
from tape.archive.location import open_filesystem, resolve_url
from tape.archive.schema import TYPES, arrow_schema
from tape.archive.table import ArchiveTable
from tape.errors import ArchiveDamaged
from tape.journal.appender import Head, read_head
from tape.journal.epochs import Holes
from tape.pipeline.archive_verifier import disagreement, last_chain
from tape.pipeline.job_context import JobContext
from tape.pipeline.journal_reader import query_store, read_head_and_holes
from tape.pipeline.options import resolve_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUND_ENTRIES = 500_000
PAUSE_S = 1.0
# This many small files of one day and kind are compacted while the job runs.
MANY_FILES = 32
# The schema of the rows in which tasks report the files that they wrote.
_WRITTEN = (
    "path string, size long, entries long, first long, last long, first_ms long, last_ms long, day string, kind string"
)


def archive(
    spark: SparkSession,
    store: str,
    lake_url: str,
    context: JobContext,
    *,
    follow: bool = False,
    round_entries: int = ROUND_ENTRIES,
    options: Mapping[str, str] | None = None,
) -> int:
    """Archive new entries, with `follow` until stopped; return their number."""
    store, lake_url = resolve_store(store), resolve_url(lake_url)
    head = query_store(store, read_head)
    lake = ArchiveTable.open_or_create(lake_url, head, options)
    _check_same_journal(lake, store, head)
    done = 0
    while not context.is_stopping:
        head, holes = query_store(store, read_head_and_holes)
        _check_not_lost(lake, holes)
        after, until = lake.until, holes.skip(min(head.global_seq, lake.until + round_entries))
        if after >= until:
            if not follow:
                break
            context.wait(PAUSE_S)
            continue
        started = time.monotonic()
        expected = until - after - holes.count(after + 1, until)
        _archive_round(spark, store, lake, range(after, until), expected, options)
        done += expected
        compact(lake, at_least=MANY_FILES)
        context.report_progress(until - after, until, head.global_seq, time.monotonic() - started)
    return done


def _archive_round(
    spark: SparkSession,
    store: str,
    lake: ArchiveTable,
    entry_range: range,
    expected: int,
    options: Mapping[str, str] | None,
) -> None:
    after, until = entry_range.start, entry_range.stop
    cores = spark.sparkContext.defaultParallelism
    reader = (
        spark.read.format("tape")
        .option("store", store)
        .option("minPartitions", min(cores, -(-(until - after) // 5_000)))
    )
    entries = reader.option("startingOffsets", after).option("endingOffsets", until).load()
    url = lake.url

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        part = pa.Table.from_batches(batches, arrow_schema(TYPES))
        if part.num_rows:
            yield pa.RecordBatch.from_pylist(msgspec.to_builtins(write_files(open_filesystem(url, options), part)))

    written = [ArchiveFile(**row.asDict()) for row in entries.mapInArrow(write, _WRITTEN).collect()]
    count = sum(file.entries for file in written)
    if count != expected:
        raise ArchiveDamaged(f"{count} of {expected} entries were written; nothing was added to the archive.")
    lake.add(written, until)


def _check_not_lost(lake: ArchiveTable, holes: Holes) -> None:
    for hole in holes:
        if hole.start <= lake.until < hole.stop - 1:
            raise ArchiveDamaged(
                f"The archive at {lake.url} reaches to {lake.until}, and the database lost {hole.start} and more:"
                " the archive has entries that the journal has no more. Keep it, and archive to another URL."
            )


def _check_same_journal(lake: ArchiveTable, store: str, head: Head) -> None:
    if lake.until > head.global_seq:
        raise ArchiveDamaged(
            f"The archive at {lake.url} reaches to {lake.until}, the journal only to {head.global_seq}: it belongs to"
            " another journal, or the journal was restored from an older backup."
        )
    if lake.until >= lake.begin and (problem := disagreement(lake, store, last_chain(lake))):
        raise ArchiveDamaged(f"The archive at {lake.url} cannot be continued: {problem}")


if __name__ == "__main__":
    from tape.pipeline.jobs.command import main

    main("archive")
