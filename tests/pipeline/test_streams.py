"""Streams follow the journal and append to it, exactly once over kills and restarts."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tape.errors import JournalDataLost, PipelineInput
from tape.journal.appender import read_head
from tape.journal.retention import prune
from tape.journal.verifier import verify
from tape.pipeline.journal_reader import query_store_once
from tape.pipeline.journal_source import JournalStreamReader
from tape.pipeline.journal_writer import query_id
from tape.pipeline.options import read_options
from tape.store import open_database
from tests.pipeline.conftest import fill, order
from tests.pipeline.test_journal_source import entries_in, numbers, read
from tests.services import Postgres, wait_for


def follow(spark: SparkSession, store: str, **options: object) -> DataFrame:
    reader = spark.readStream.format("tape").option("store", store)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def copy_available(frame: DataFrame, store: str, checkpoint: str) -> StreamingQuery:
    """Append what a stream has now to another journal, with a mark of where it came from."""
    copies = frame.selectExpr(
        "concat('/tape/copy/made/', global_seq) AS subject", "payload_json", "run_id", "tenant", "schema_version"
    )
    writer = copies.writeStream.format("tape").option("store", store).option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


@pytest.fixture
def target(tmp_path: Path) -> str:
    url = f"sqlite:{tmp_path / 'target.db'}"
    open_database(url).migrate()
    return url


def test_a_stream_copies_a_journal_in_bounded_batches_and_goes_on_where_it_stopped(
    spark: SparkSession, orders: str, target: str, checkpoint: str
) -> None:
    source = follow(spark, orders, startingOffsets="earliest", maxOffsetsPerTrigger=400)
    query = copy_available(source, target, checkpoint)
    assert [batch["numInputRows"] for batch in query.recentProgress if batch["numInputRows"]] == [400, 400, 200]
    fill(orders, [order(number) for number in range(1001, 1011)])
    copy_available(source, target, checkpoint)
    copies = entries_in(target)
    assert [entry.subject for entry in copies] == [f"/tape/copy/made/{number}" for number in range(1, 1011)]
    originals = entries_in(orders)
    assert [entry.payload_json for entry in copies] == [entry.payload_json for entry in originals]
    assert [(entry.run_id, entry.seq) for entry in copies] == [(entry.run_id, entry.seq) for entry in originals]
    assert query_store_once(target, verify).ok


def test_a_stream_begins_at_the_latest_entry_and_hears_what_comes(
    spark: SparkSession, sqlite_url: str, checkpoint: str
) -> None:
    fill(sqlite_url, [order(number) for number in range(1, 1001)])
    heard: list[int] = []
    frame = follow(spark, sqlite_url, where='kind == "order"').select("global_seq")
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: heard.extend(row[0] for row in batch.collect()))
        .option("checkpointLocation", checkpoint)
        .start()
    )
    try:
        wait_for(lambda: query.lastProgress or query.exception(), "the first trigger", 120)
        fill(sqlite_url, [order(number) for number in range(1001, 1011)])
        wait_for(lambda: len(heard) >= 8 or query.exception(), "eight orders", 120)
    finally:
        query.stop()
    assert sorted(heard) == [1001, 1002, 1003, 1004, 1006, 1007, 1008, 1009]


def stream_reader(store: str, **options: object) -> JournalStreamReader:
    given = {"store": store} | {name: str(value) for name, value in options.items()}
    return JournalStreamReader(read_options(given, streaming=True), ["global_seq"])


def test_a_stream_stops_loudly_when_retention_passed_it(orders: str) -> None:
    async def forget() -> None:
        async with open_database(orders) as database:
            await prune(database, before_seq=101)

    asyncio.run(forget())
    start, end = {"global_seq": 20}, {"global_seq": 200}
    with pytest.raises(JournalDataLost, match="Entries 21 to 100 were pruned"):
        stream_reader(orders).partitions(start, end)
    careless = stream_reader(orders, failOnDataLoss="false")
    (part,) = careless.partitions(start, end)
    assert sum(batch.num_rows for batch in careless.read(part)) == 100


def test_a_stream_refuses_a_journal_that_ends_before_its_cursor(orders: str) -> None:
    with pytest.raises(JournalDataLost, match="has read up to 5000, but the journal ends at 1000"):
        stream_reader(orders).latestOffset({"global_seq": 5000}, ReadAllAvailable())


def test_a_stream_waits_while_the_database_is_gone() -> None:
    with Postgres() as server, server.fresh_database() as store:
        fill(store, [order(number) for number in range(1, 11)])
        reader = stream_reader(store)
        server.stop()
        try:
            assert reader.latestOffset({"global_seq": 4}, ReadAllAvailable()) == {"global_seq": 4}
        finally:
            server.start()
        assert reader.latestOffset({"global_seq": 4}, ReadAllAvailable()) == {"global_seq": 10}


def test_a_frame_is_appended_and_a_repeated_one_is_not(spark: SparkSession, store_url: str) -> None:
    open_database(store_url).migrate()
    frame = spark.range(50).selectExpr("concat('/tape/n/seen/', id) AS subject", "to_json(struct(id)) AS payload_json")
    writer = frame.write.format("tape").mode("append").option("store", store_url)
    writer.save()
    for _ in range(2):
        named = frame.write.format("tape").mode("append").option("store", store_url)
        named.option("producer", "nightly").option("batchId", "2026-01-31").save()
    assert len(entries_in(store_url)) == 100
    assert query_store_once(store_url, verify).ok
    assert numbers(read(spark, store_url)) == list(range(1, 101))


def test_bad_columns_and_rows_are_named(spark: SparkSession, sqlite_url: str) -> None:
    open_database(sqlite_url).migrate()
    for columns, message in (
        ("'/tape/a/b' AS subject, 1 AS colour", "The journal has no column 'colour'; it takes subject"),
        ("'/tape/a/b' AS subject, 1L AS global_seq", "'global_seq' is assigned by the journal: drop it"),
        ("'/tape/a/b' AS subject, struct(1) AS payload_json", "'payload_json' is struct"),
        ("'r' AS run_id", "There is no column 'subject'"),
        ("'nonsense' AS subject", "Row 1 of the task: The subject 'nonsense' must begin with /tape/"),
        ("'/tape/a/b' AS subject, '{' AS payload_json", "Row 1 of the task: "),
    ):
        frame = spark.sql(f"SELECT {columns}")
        with pytest.raises(PySparkException) as caught:
            frame.write.format("tape").mode("append").option("store", sqlite_url).save()
        assert message in str(caught.value)
    with pytest.raises(PySparkException, match="append-only"):
        spark.sql("SELECT '/tape/a/b' AS subject").write.format("tape").mode("overwrite").option(
            "store", sqlite_url
        ).save()
    assert entries_in(sqlite_url) == []


def test_a_checkpoint_that_cannot_be_read_asks_for_a_name(tmp_path: Path) -> None:
    with pytest.raises(PipelineInput, match='option\\("producer"'):
        query_id("s3://bucket/checkpoint")
    (tmp_path / "metadata").write_text('{"id": "abc"}')
    assert query_id(f"file:{tmp_path}") == query_id(str(tmp_path)) == "abc"


_COPYING = """
import sys
from tape.pipeline.session import open_session
from tests.pipeline.conftest import SETTINGS
from tests.pipeline.test_streams import copy_available, follow
source, target, checkpoint = sys.argv[1:]
spark = open_session("copy", "local[2]", SETTINGS, quick=True)
copy_available(follow(spark, source, startingOffsets="earliest", maxOffsetsPerTrigger=300), target, checkpoint)
"""


@pytest.mark.timeout(600)  # two drivers, one after the other
def test_a_stream_killed_between_batches_appends_each_entry_once(sqlite_url: str, target: str, checkpoint: str) -> None:
    fill(sqlite_url, [order(number) for number in range(1, 1_501)])  # five batches, two of them before the kill
    command = [sys.executable, "-c", _COPYING, sqlite_url, target, checkpoint]
    copying = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        wait_for(
            lambda: query_store_once(target, read_head).global_seq >= 600 or copying.poll() is not None,
            "two batches of copies",
            300,
        )
    finally:
        os.killpg(copying.pid, signal.SIGKILL)  # the driver, its JVM and its workers
        copying.wait()
    assert copying.returncode == -signal.SIGKILL
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    assert [entry.subject for entry in entries_in(target)] == [f"/tape/copy/made/{n}" for n in range(1, 1_501)]
    assert query_store_once(target, verify).ok
