"""`format("tape")` checks every entry that leaves the database: what is damaged is named, never delivered."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tape.errors import JournalDataLost
from tape.pipeline.columns import COLUMNS
from tape.pipeline.journal_source import JournalReader
from tape.pipeline.options import read_options
from tape.store import open_database
from tests.pipeline.conftest import fill, order

COUNT = 1_000
# How a column is changed, so that nothing but its checksum can show it.
CHANGES = {
    "payload": "payload_json = replace(payload_json, '\"n\": 777', '\"n\": 778')",
    "subject": "subject = subject || 'x'",
    "user": "\"user\" = 'mallory'",
    "time": "ts_ms = ts_ms + 1",
    "chain": "chain = substr(chain, 1, 31)",
}


def read(store: str, *columns: str, **options: str) -> list[int]:
    reader = JournalReader(read_options({"store": store} | options, streaming=False), ["global_seq", *columns])
    batches = (batch for part in reader.partitions() for batch in reader.read(part))
    return [number for batch in batches for number in batch.column("global_seq").to_pylist()]


def change(store: str, sql: str) -> None:
    async def write() -> None:
        async with open_database(store) as database:
            await database.write(lambda tx: tx.execute(sql))

    asyncio.run(write())


@pytest.mark.parametrize("name", CHANGES)
def test_an_altered_entry_is_named_whatever_columns_are_read(orders: str, name: str) -> None:
    number = 777
    change(orders, f"UPDATE tape_journal SET {CHANGES[name]} WHERE global_seq = {number}")
    for columns in ((), COLUMNS[1:]):
        with pytest.raises(JournalDataLost, match=rf"Entry {number} is damaged: .*failOnDataLoss"):
            read(orders, *columns)


def test_with_fail_on_data_loss_off_everything_else_is_read_and_a_warning_names_it(
    orders: str, caplog: pytest.LogCaptureFixture
) -> None:
    change(orders, "UPDATE tape_journal SET payload_json = '{}' WHERE global_seq IN (7, 8, 999)")
    with caplog.at_level(logging.WARNING):
        found = read(orders, failOnDataLoss="false")
    assert found == [number for number in range(1, COUNT + 1) if number not in (7, 8, 999)]
    assert "Entries 7 to 8 are damaged" in caplog.text
    assert "Entry 999 is damaged" in caplog.text
    assert "missing" not in caplog.text.replace("a checksum is missing or differs", "")


@pytest.mark.parametrize("options", [{"subject": "/tape/order/**"}, {"where": "kind == 'order' && payload.n > 10"}])
def test_a_selection_names_a_damaged_entry_that_it_selects(orders: str, options: dict[str, str]) -> None:
    whole = read(orders, **options)
    damaged = next(number for number in whole if number > 500)
    change(orders, f"UPDATE tape_journal SET session = 'x' WHERE global_seq = {damaged}")
    with pytest.raises(JournalDataLost, match=f"Entry {damaged} is damaged"):
        read(orders, **options)
    assert read(orders, failOnDataLoss="false", **options) == [n for n in whole if n != damaged]


def test_entries_without_a_checksum_are_proven_by_the_chain(orders: str) -> None:
    whole = read(orders, subject="/tape/order/**")
    change(orders, "UPDATE tape_journal SET checksum = NULL WHERE global_seq > 100 AND global_seq < 800")
    assert read(orders) == list(range(1, COUNT + 1))
    assert read(orders, subject="/tape/order/**") == whole
    change(orders, "UPDATE tape_journal SET kind = 'refund' WHERE global_seq = 301")
    with pytest.raises(JournalDataLost, match="Entry 301 is damaged"):
        read(orders)


def test_a_text_that_is_no_utf_8_is_named(sqlite_url: str) -> None:
    open_database(sqlite_url).migrate()
    fill(sqlite_url, [order(number) for number in range(1, COUNT + 1)])
    for number in random.Random(1).sample(range(1, COUNT + 1), 3):
        change(
            sqlite_url, f"UPDATE tape_journal SET payload_json = CAST(x'7bff7d' AS TEXT) WHERE global_seq = {number}"
        )
        with pytest.raises(JournalDataLost, match="damaged"):
            read(sqlite_url)
        found = read(sqlite_url, failOnDataLoss="false")
        assert number not in found
    assert len(found) == COUNT - 3


def test_spark_ends_with_an_error_that_names_the_entry(spark: SparkSession, orders: str) -> None:
    change(orders, "UPDATE tape_journal SET payload_json = '{}' WHERE global_seq = 42")
    frame = spark.read.format("tape").option("store", orders).schema("kind string").load()
    with pytest.raises(PySparkException, match="Entry 42 is damaged: the entry is not what was written"):
        frame.groupBy("kind").count().collect()
