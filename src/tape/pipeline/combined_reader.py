"""Reads journal and archive as one sequence: pruned entries from the archive, all others from the database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from tape.archive.table import ArchiveTable
from tape.journal.appender import Head, read_head
from tape.pipeline.columns import arrow_schema
from tape.pipeline.journal_reader import BATCH_ROWS, query_store, read_journal_range, report_data_loss
from tape.pipeline.options import ReadOptions
from tape.pipeline.selection import EntrySelection


def oldest_entry(options: ReadOptions, head: Head) -> int:
    """Return the first global_seq that the journal or the archive has."""
    return min(ArchiveTable.open(options.lake).begin, head.oldest) if options.lake else head.oldest


def check_data_loss(options: ReadOptions, head: Head, after: int, until: int) -> None:
    """Raise JournalDataLost, or log a warning, if entries of a range are neither in the journal nor in the archive."""
    if not options.lake:
        report_data_loss(after, min(head.oldest, until + 1), options.fail_on_data_loss)
        return
    lake = ArchiveTable.open(options.lake)
    report_data_loss(after, min(lake.begin, head.oldest, until + 1), options.fail_on_data_loss)
    report_data_loss(max(after, lake.until), min(head.oldest, until + 1), options.fail_on_data_loss)


def read_range(
    options: ReadOptions, columns: Sequence[str], selection: EntrySelection, after: int, until: int
) -> Iterator[pa.RecordBatch]:
    """Read the selected entries after one global_seq up to another, in order, from archive and journal."""
    if options.lake:
        head = query_store(options.store, read_head)
        archived = min(until, head.oldest - 1)
        if after < archived:
            check_data_loss(options, head, after, until)
            yield from read_archived_range(ArchiveTable.open(options.lake), columns, selection, after, archived)
            after = archived
    if after < until:
        yield from read_journal_range(
            options.store, columns, selection, after, until, fail_on_data_loss=options.fail_on_data_loss
        )


def read_archived_range(
    lake: ArchiveTable, columns: Sequence[str], selection: EntrySelection, after: int, until: int
) -> Iterator[pa.RecordBatch]:
    """Read the selected entries of a range from the archive. Raises ArchiveDamaged, which names the file."""
    batch_filter, shown = selection.batch_filter(decide_all=True), arrow_schema(columns)
    tables = [lake.read_file(file, after, until) for file in lake.files() if file.last > after and file.first <= until]
    if not tables:
        return
    for batch in pa.concat_tables(tables).sort_by("global_seq").combine_chunks().to_batches(BATCH_ROWS):
        kept = batch_filter.keep(batch) if batch_filter else batch
        if kept.num_rows:
            yield pa.RecordBatch.from_arrays([kept.column(name) for name in shown.names], schema=shown)
