"""Journal and archive as one sequence: what was pruned is read from the lake, the rest from the database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from tape.archive.table import ArchiveTable
from tape.journal.appender import Head, read_head
from tape.pipeline.columns import arrow_schema
from tape.pipeline.journal_batches import BATCH_ROWS, ask_patiently, lost, read_part
from tape.pipeline.options import ReadOptions
from tape.pipeline.selection import Selecting


def oldest_entry(options: ReadOptions, head: Head) -> int:
    """The first global_seq that can be read at all."""
    return min(ArchiveTable.open(options.lake).begin, head.oldest) if options.lake else head.oldest


def check_not_lost(options: ReadOptions, head: Head, after: int, until: int) -> None:
    """Speak of entries after a cursor that are neither in the journal nor in the archive."""
    if not options.lake:
        lost(after, min(head.oldest, until + 1), options.fail_on_data_loss)
        return
    lake = ArchiveTable.open(options.lake)
    lost(after, min(lake.begin, head.oldest, until + 1), options.fail_on_data_loss)
    lost(max(after, lake.until), min(head.oldest, until + 1), options.fail_on_data_loss)


def read_stretch(
    options: ReadOptions, columns: Sequence[str], selecting: Selecting, after: int, until: int
) -> Iterator[pa.RecordBatch]:
    """The wanted entries after one global_seq up to another, in order, wherever they are."""
    if options.lake:
        head = ask_patiently(options.store, read_head)
        archived = min(until, head.oldest - 1)
        if after < archived:
            check_not_lost(options, head, after, until)
            yield from read_archived(ArchiveTable.open(options.lake), columns, selecting, after, archived)
            after = archived
    if after < until:
        yield from read_part(
            options.store, columns, selecting, after, until, fail_on_data_loss=options.fail_on_data_loss
        )


def read_archived(
    lake: ArchiveTable, columns: Sequence[str], selecting: Selecting, after: int, until: int
) -> Iterator[pa.RecordBatch]:
    """The wanted entries of a stretch of the archive. Raises ArchiveDamaged, naming the file."""
    test, shown = selecting.test(decide_all=True), arrow_schema(columns)
    tables = [lake.read_file(file, after, until) for file in lake.files() if file.last > after and file.first <= until]
    if not tables:
        return
    for batch in pa.concat_tables(tables).sort_by("global_seq").combine_chunks().to_batches(BATCH_ROWS):
        kept = test.keep(batch) if test else batch
        if kept.num_rows:
            yield pa.RecordBatch.from_arrays([kept.column(name) for name in shown.names], schema=shown)
