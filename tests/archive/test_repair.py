"""The archive's files: named when damaged, rebuilt from the journal, kept few."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner, Result

from tape.archive import compaction
from tape.archive.compaction import compact
from tape.archive.files import ArchiveFile, write_file, write_files
from tape.archive.reader import ArchiveReader
from tape.archive.rows import read_rows
from tape.archive.table import ArchiveTable
from tape.cli.main import app
from tape.errors import ArchiveBeyondRepair, ArchiveBusy, ArchiveDamaged
from tape.journal.history import EntryFilter
from tape.pipeline.archive_repair import repair_archive
from tape.pipeline.archive_verifier import verify_archive
from tape.pipeline.journal_reader import query_store_once
from tape.store import open_database
from tests.archive.conftest import content, forget, prepare

ENTRIES = 300


@pytest.fixture
def lake(store_url: str, tmp_path: Path) -> ArchiveTable:
    """An archive of 1 to 300, in three rounds."""
    prepare(store_url, str(tmp_path / "lake"), ENTRIES, (100, 101, ENTRIES))
    return ArchiveTable.open(str(tmp_path / "lake"))


def prune(store: str, before: int) -> None:
    async def work() -> None:
        async with open_database(store) as database:
            await forget(database, before)

    asyncio.run(work())


def verify(lake: ArchiveTable, store: str, *options: str) -> Result:
    return CliRunner().invoke(app, ["verify", "--lake", lake.url, "--store", store, *options])


def flip(path: Path, at: int = 60) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[at] ^= 0xFF
    path.write_bytes(damaged)


def test_damaged_and_missing_files_are_named_rebuilt_and_quarantined(lake: ArchiveTable, store_url: str) -> None:
    whole = content(lake)
    first, second, *_, last = [Path(lake.url, file.path) for file in lake.files()]
    flip(first)
    second.unlink()
    last.write_bytes(last.read_bytes()[:-40])
    named = verify(lake, store_url)
    assert named.exit_code == 1
    assert "problems" in named.output
    for path in (first, second, last):
        assert path.name in named.output
    assert "3 problems" in named.output
    repaired = verify(lake, store_url, "--repair", "--output", "json")
    assert repaired.exit_code == 0, repaired.output
    output = json.loads(repaired.output)
    assert (output["ok"], len(output["repaired"]["replaced"])) == (True, 3)
    lake.refresh()
    assert content(lake) == whole
    assert verify(lake, store_url).exit_code == 0
    quarantined = sorted(path.name.rpartition(",")[2] for path in Path(lake.url, "_quarantine").iterdir())
    assert quarantined == sorted((first.name, last.name))
    assert not any(path.exists() for path in (first, second, last))
    assert lake.vacuum() == 0
    assert len(list(Path(lake.url, "_quarantine").iterdir())) == 2


def test_an_altered_and_a_removed_entry_are_repaired(lake: ArchiveTable, store_url: str) -> None:
    whole = content(lake)
    altered, taken, *_ = lake.files()
    table = lake.read_file(altered, 0, ENTRIES)
    payloads = table.column("payload_json").to_pylist()
    payloads[3] = '{"n": 0}'
    column = table.column_names.index("payload_json")
    forged = table.set_column(column, "payload_json", pa.array(payloads)).drop_columns(["kind"])
    wrong = write_file(lake.filesystem, [forged], forged, forged, altered.day, altered.kind)
    lake.replace([altered, taken], [wrong], "a forgery")
    report = verify_archive(lake, store_url)
    assert "altered" in {finding.problem for finding in report.findings}
    assert sum(finding.problem == "missing" for finding in report.findings) == taken.entries
    done = repair_archive(lake, store_url, report)
    assert (done.entries, done.replaced) == (altered.entries + taken.entries, [wrong.path])
    assert content(lake) == whole


def test_entries_pruned_from_the_journal_are_reported_and_nothing_is_changed(
    lake: ArchiveTable, store_url: str
) -> None:
    early, *_, late = lake.files()
    prune(store_url, 150)
    for file in (early, late):
        Path(lake.url, file.path).write_bytes(b"nothing")
    before = {path: path.stat().st_mtime_ns for path in Path(lake.url).rglob("*")}
    refused = verify(lake, store_url, "--repair")
    assert isinstance(refused.exception, ArchiveBeyondRepair)
    assert "are no longer in the journal, which begins with 150" in str(refused.exception)
    assert early.path in str(refused.exception)
    assert {path: path.stat().st_mtime_ns for path in Path(lake.url).rglob("*")} == before


def test_a_journal_that_was_altered_too_repairs_nothing(sqlite_url: str, tmp_path: Path) -> None:
    prepare(sqlite_url, str(tmp_path / "lake"), ENTRIES, (ENTRIES,))
    lake = ArchiveTable.open(str(tmp_path / "lake"))
    victim = lake.files()[0]
    Path(lake.url, victim.path).unlink()
    connection = open_database(sqlite_url).connect()
    connection.execute("UPDATE tape_journal SET payload_json = '{}' WHERE global_seq = ?", victim.first)
    connection.close()
    files = set(Path(lake.url).rglob("*"))
    with pytest.raises(ArchiveBeyondRepair, match="do not fit into the archive's chain"):
        repair_archive(lake, sqlite_url, verify_archive(lake, sqlite_url))
    assert set(Path(lake.url).rglob("*")) == files


def test_small_files_become_large_ones_and_readers_do_not_notice(lake: ArchiveTable, store_url: str) -> None:
    whole, reader = content(lake), ArchiveReader(lake.url)
    before = reader.read(EntryFilter(), 0, reader.extent()[-1], 10)
    old = lake.files()
    assert compact(lake, at_least=4) == 0
    assert compact(lake) == len(old)
    assert {(file.day, file.kind) for file in lake.files()} == {(file.day, file.kind) for file in old}
    assert len(lake.files()) == len({(file.day, file.kind) for file in old})
    for file in lake.files():
        groups = pq.ParquetFile(Path(lake.url, file.path))
        assert groups.schema_arrow.metadata[b"tape.last_chain"].decode()[:16] == file.path.split("-")[-2]
    assert content(lake) == whole
    assert verify_archive(lake, store_url).ok
    table = DeltaTable(lake.url)
    assert len(table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)) == len(old)
    reader._tables.clear()
    reader._footers.clear()
    assert reader.read(EntryFilter(), 0, ENTRIES, 10) == before


def test_the_second_of_two_compactions_changes_nothing(lake: ArchiveTable, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, other, joined = content(lake), ArchiveTable.open(lake.url), compaction._join_files

    def outrun(mine: ArchiveTable, files: Sequence[ArchiveFile]) -> ArchiveFile:
        monkeypatch.setattr(compaction, "_join_files", joined)
        compact(other)
        return joined(mine, files)

    monkeypatch.setattr(compaction, "_join_files", outrun)
    assert compact(lake) == 0
    assert content(lake) == whole
    assert lake.files() == other.files()


def test_two_jobs_that_archive_the_same_entries_add_them_once(sqlite_url: str, tmp_path: Path) -> None:
    prepare(sqlite_url, str(tmp_path / "lake"), ENTRIES, (100,))
    one, other = ArchiveTable.open(str(tmp_path / "lake")), ArchiveTable.open(str(tmp_path / "lake"))
    rows = query_store_once(sqlite_url, lambda reader: read_rows(reader, 100, ENTRIES))
    one.add(write_files(one.filesystem, rows), ENTRIES)
    with pytest.raises(ArchiveBusy):
        other.add(write_files(other.filesystem, rows), ENTRIES)
    one.refresh()
    assert sum(file.entries for file in one.files()) == ENTRIES


def test_an_entry_that_is_missing_is_never_passed_over(lake: ArchiveTable) -> None:
    gone = lake.files()[0]
    lake.replace([gone], [], "lost")
    past = ArchiveReader(lake.url)
    past.extent()
    with pytest.raises(ArchiveDamaged, match=r"has \d+ of the 300 entries from 1 to 300"):
        past.read(EntryFilter(), 0, ENTRIES, 1000)
