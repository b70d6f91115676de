"""Rollups have the same numbers as the journal, each entry once."""

from __future__ import annotations

import asyncio
from collections import Counter

from pyspark.sql import SparkSession

from tape.journal.retention import prune
from tape.pipeline.batches import transact
from tape.pipeline.hot import ask
from tape.pipeline.jobs.rollup import rollup
from tape.pipeline.rollups import WIDTHS_MS, Rollup, add_rollups, read_rollups, rolled_up_to
from tape.pipeline.running import Running
from tape.store import open_database
from tests.pipeline.conftest import fill, order
from tests.pipeline.test_reading import entries_in

ALWAYS = 1 << 60


def counted(store: str, width: str) -> Counter[tuple[int, str, str]]:
    rollups = ask(store, lambda reader: read_rollups(reader, width, 0, ALWAYS))
    return Counter({(one.start_ms, one.tenant, one.type): one.entries for one in rollups})


def test_the_numbers_are_those_of_the_journal(spark: SparkSession, orders: str) -> None:
    running = Running("rollup", quiet=True)
    assert rollup(spark, orders, running, round_entries=600) == 1000
    fill(orders, [order(number) for number in range(1001, 1051)])
    assert rollup(spark, orders, running) == 50
    assert rollup(spark, orders, running) == 0
    entries = entries_in(orders)
    for name, width in WIDTHS_MS.items():
        expected = Counter((entry.ts_ms // width * width, entry.tenant, entry.type) for entry in entries)
        assert counted(orders, name) == expected
    rollups = ask(orders, lambda reader: read_rollups(reader, "day", 0, ALWAYS))
    assert sum(one.bytes for one in rollups) == sum(len(entry.payload_json.encode()) for entry in entries)


def test_a_stretch_that_another_job_has_counted_is_not_added_again(store_url: str) -> None:
    open_database(store_url).migrate()
    minutes = [Rollup(60_000, "t", "a.b", 5, 50), Rollup(120_000, "t", "a.b", 2, 20)]
    assert transact(store_url, lambda tx: add_rollups(tx, minutes, 0, 7))
    assert not transact(store_url, lambda tx: add_rollups(tx, minutes, 0, 7))
    assert ask(store_url, rolled_up_to) == 7
    assert counted(store_url, "hour") == {(0, "t", "a.b"): 7}
    assert counted(store_url, "minute") == {(60_000, "t", "a.b"): 5, (120_000, "t", "a.b"): 2}


def test_a_pruned_journal_is_counted_from_its_oldest_entry(spark: SparkSession, sqlite_url: str) -> None:
    fill(sqlite_url, [order(number) for number in range(1, 21)])

    async def forget() -> None:
        async with open_database(sqlite_url) as database:
            await prune(database, before_seq=11)

    asyncio.run(forget())
    assert rollup(spark, sqlite_url, Running("rollup", quiet=True)) == 11  # and the note of the pruning
    assert ask(sqlite_url, rolled_up_to) == 21
