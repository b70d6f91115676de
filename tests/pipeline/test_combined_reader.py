"""Journal and archive are read as one sequence."""

from __future__ import annotations

import asyncio
import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest

from tape.archive.files import write_files
from tape.archive.schema import arrow_schema
from tape.archive.table import ArchiveTable
from tape.cel import compile_predicate
from tape.errors import ArchiveDamaged, JournalDataLost
from tape.journal.appender import read_head
from tape.journal.retention import prune
from tape.model.pattern import Pattern
from tape.pipeline.columns import COLUMNS
from tape.pipeline.journal_reader import query_store_once, read_journal_range
from tape.pipeline.journal_source import JournalStreamReader
from tape.pipeline.options import read_options
from tape.pipeline.selection import EntrySelection
from tape.store import open_database
from tests.pipeline.conftest import fill, order
from tests.pipeline.test_journal_source import entries_in, selected


def archive_up_to(store: str, url: str, until: int) -> ArchiveTable:
    """What a round of the job does, without Spark around it."""
    lake = ArchiveTable.open_or_create(url, query_store_once(store, read_head))
    batches = read_journal_range(store, COLUMNS, EntrySelection(), lake.until, until, fail_on_data_loss=True)
    lake.add(write_files(lake.filesystem, pa.Table.from_batches(batches, arrow_schema(COLUMNS))), until)
    return lake


def forget(store: str, before: int) -> None:
    async def work() -> None:
        async with open_database(store) as database:
            await prune(database, before_seq=before)

    asyncio.run(work())


@pytest.fixture
def pruned(orders: str, tmp_path: Path) -> tuple[str, str]:
    """A journal of 1,000 orders that begins with 601; its archive has 1 to 700."""
    url = str(tmp_path / "lake")
    archive_up_to(orders, url, 300)
    archive_up_to(orders, url, 700)
    forget(orders, 601)
    return orders, url


def test_entries_come_from_the_archive_and_then_from_the_journal(pruned: tuple[str, str]) -> None:
    store, lake = pruned
    assert selected(store) == list(range(601, 1002))
    assert selected(store, lake=lake, minPartitions=3) == list(range(1, 1002))
    assert selected(store, lake=lake, startingOffsets=590, endingOffsets=610) == list(range(591, 611))


def test_patterns_predicates_and_times_hold_on_both_sides(store_url: str, tmp_path: Path) -> None:
    fill(store_url, [order(number) for number in range(1, 401)], chunk=20)
    entries, lake = entries_in(store_url), str(tmp_path / "lake")
    archive_up_to(store_url, lake, 300)
    forget(store_url, 251)
    pattern, text = "/tape/order/*/4", 'payload.n > 50 && tenant == "t1"'
    matches = compile_predicate(text).matches
    wanted = [entry.global_seq for entry in entries if Pattern(pattern).matches(entry.subject) and matches(entry)]
    assert selected(store_url, lake=lake, subject=pattern, where=text) == wanted
    moment = entries[120].ts_ms
    since = dt.datetime.fromtimestamp(moment / 1000, dt.UTC).isoformat()
    late = [entry.global_seq for entry in entries if entry.ts_ms >= moment]
    assert selected(store_url, lake=lake, startingOffsets=since) == [*late, 401]  # and the note of the pruning
    before = [entry.global_seq for entry in entries if entry.ts_ms < moment]
    assert selected(store_url, lake=lake, endingOffsets=since) == before
    assert selected(store_url, lake=lake, where=f"ts_ms < {moment}") == before


def test_a_stream_goes_on_in_the_archive_when_retention_has_passed_it(pruned: tuple[str, str]) -> None:
    store, lake = pruned
    options = read_options({"store": store, "lake": lake, "startingOffsets": "earliest"}, streaming=True)
    reader = JournalStreamReader(options, ["global_seq"])
    assert reader.initialOffset() == {"global_seq": 0}
    parts = reader.partitions({"global_seq": 550}, {"global_seq": 650})
    read = [n for part in parts for batch in reader.read(part) for n in batch.column("global_seq").to_pylist()]
    assert read == list(range(551, 651))


def test_what_neither_side_has_is_an_error(orders: str, tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    archive_up_to(orders, lake, 300)
    forget(orders, 601)
    with pytest.raises(JournalDataLost, match="Entries 301 to 600 were pruned"):
        selected(orders, lake=lake)
    assert selected(orders, lake=lake, failOnDataLoss="false") == [*range(1, 301), *range(601, 1002)]


def test_a_damaged_file_stops_the_read_and_is_named(pruned: tuple[str, str]) -> None:
    store, lake = pruned
    victim = ArchiveTable.open(lake).files()[0].path
    Path(lake, victim).unlink()
    with pytest.raises(ArchiveDamaged, match=Path(victim).name):
        selected(store, lake=lake)
