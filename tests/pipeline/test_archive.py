"""The archive holds each entry once, can be proven, and frees the journal of what it holds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from tape.archive.compaction import compact
from tape.archive.table import ArchiveTable
from tape.cli.main import app
from tape.errors import ArchiveDamaged, PipelineInput
from tape.journal.appender import read_head
from tape.journal.retention import prune
from tape.pipeline.archive_verifier import verify_archive
from tape.pipeline.job_context import JobContext
from tape.pipeline.jobs import archive as job
from tape.pipeline.journal_reader import query_store_once
from tape.store import open_database
from tests.pipeline.conftest import fill, order


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


def archive(spark: SparkSession, store: str, lake: str, round_entries: int = 400) -> int:
    return job.archive(spark, store, lake, JobContext("archive", quiet=True), round_entries=round_entries)


def test_each_entry_is_archived_once_and_proven(spark: SparkSession, orders: str, lake: str) -> None:
    assert archive(spark, orders, lake) == 1000
    assert archive(spark, orders, lake) == 0
    fill(orders, [order(number) for number in range(1001, 1101)])
    assert archive(spark, orders, lake) == 100
    archived = ArchiveTable.open(lake)
    report = verify_archive(archived, orders)
    assert (report.ok, report.entries, report.oldest, report.until) == (True, 1100, 1, 1100)
    assert {path.name for path in Path(lake).glob("day=*/kind=*")} == {"kind=order", "kind=refund"}
    files = archived.files()
    assert sum(file.entries for file in files) == 1100
    assert compact(archived) > 0
    assert len(archived.files()) < len(files)
    assert verify_archive(archived, orders).ok
    frame = spark.read.parquet(*(f"{lake}/{file.path}" for file in archived.files()))
    assert frame.count() == 1100


def test_files_without_their_commit_were_never_there(
    spark: SparkSession, orders: str, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ArchiveTable, "add", killed)
    with pytest.raises(KeyboardInterrupt):
        archive(spark, orders, lake)
    monkeypatch.undo()
    assert list(Path(lake).glob("day=*/kind=*/*.parquet"))
    assert archive(spark, orders, lake) == 1000
    report = verify_archive(ArchiveTable.open(lake), orders)
    assert (report.ok, report.entries) == (True, 1000)


def test_a_damaged_or_missing_file_is_named_and_keeps_the_journal_from_being_pruned(
    spark: SparkSession, sqlite_url: str, lake: str
) -> None:
    fill(sqlite_url, [order(number) for number in range(1, 201)])
    archive(spark, sqlite_url, lake)
    whole = CliRunner().invoke(app, ["verify", "--lake", lake, "--store", sqlite_url])
    assert whole.exit_code == 0, whole.output
    assert "200 archived entries (1 to 200)" in whole.output
    victim = Path(lake, ArchiveTable.open(lake).files()[0].path)
    content = bytearray(victim.read_bytes())
    content[40] ^= 0xFF
    victim.write_bytes(content)
    report = verify_archive(ArchiveTable.open(lake), sqlite_url)
    assert [victim.name in text for text in report.damaged.values()] == [True]
    victim.unlink()
    report = verify_archive(ArchiveTable.open(lake), sqlite_url)
    assert [victim.name in text for text in report.damaged.values()] == [True]
    refused = CliRunner().invoke(app, ["prune", "--before", "150", "--archived", lake, "--yes", "--store", sqlite_url])
    assert isinstance(refused.exception, ArchiveDamaged)
    assert query_store_once(sqlite_url, read_head).oldest == 1


def test_only_what_is_archived_is_pruned_and_archiving_goes_on_after_it(
    spark: SparkSession, sqlite_url: str, lake: str
) -> None:
    fill(sqlite_url, [order(number) for number in range(1, 101)])
    archive(spark, sqlite_url, lake)
    fill(sqlite_url, [order(number) for number in range(101, 201)])
    pruned = CliRunner().invoke(app, ["prune", "--before", "180", "--archived", lake, "--yes", "--store", sqlite_url])
    assert pruned.exit_code == 0, pruned.output
    assert query_store_once(sqlite_url, read_head).oldest == 101
    assert archive(spark, sqlite_url, lake) == 101  # and the note of the pruning
    assert verify_archive(ArchiveTable.open(lake), sqlite_url).entries == 201


def test_an_archive_is_not_continued_with_another_journal(
    spark: SparkSession, tmp_path: Path, sqlite_url: str, lake: str
) -> None:
    other = f"sqlite:{tmp_path / 'other.db'}"
    fill(sqlite_url, [order(number) for number in range(1, 11)])
    fill(other, [order(number) for number in range(2, 22)])
    archive(spark, sqlite_url, lake)
    with pytest.raises(ArchiveDamaged, match="another journal"):
        archive(spark, other, lake)
    with pytest.raises(PipelineInput, match="There is no archive at"):
        ArchiveTable.open(str(tmp_path / "nowhere"))


def test_pruning_past_the_archive_is_noticed(spark: SparkSession, sqlite_url: str, lake: str) -> None:
    fill(sqlite_url, [order(number) for number in range(1, 11)])
    archive(spark, sqlite_url, lake)
    fill(sqlite_url, [order(number) for number in range(11, 31)])

    async def forget() -> None:
        async with open_database(sqlite_url) as database:
            await prune(database, before_seq=21)

    asyncio.run(forget())
    with pytest.raises(Exception, match="entries 11 to 20 were pruned from the journal and are not in the archive"):
        archive(spark, sqlite_url, lake)
