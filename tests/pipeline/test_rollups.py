"""Rollups have the same numbers as the journal, each entry once, however it is cut into rounds."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from tape.engine.ledgers.histogram import Histogram, histogram_of
from tape.engine.ledgers.rollups import (
    WIDTHS_MS,
    CountRollup,
    RollupBatch,
    RollupPosition,
    add_batch,
    read_counts,
    read_durations,
    read_open,
    read_position,
)
from tape.journal.retention import prune
from tape.pipeline.batch_writer import transact
from tape.pipeline.job_context import JobContext
from tape.pipeline.jobs.archive import archive
from tape.pipeline.jobs.rollup import read_batch, rollup
from tape.pipeline.journal_reader import query_store_once
from tape.store import open_database
from tests.history import TimedDraft, write_timed
from tests.pipeline.conftest import fill, order
from tests.pipeline.test_journal_source import entries_in

ALWAYS = 1 << 60
START = 1_780_000_000_000 // 60_000 * 60_000
TABLES = {
    "tape_rollups": "width_ms, start_ms, tenant, type, tool",
    "tape_rollup_durations": "width_ms, start_ms, tenant, measure, tool, outcome",
    "tape_rollup_open": "run_id, measure, name",
    "tape_rollup_position": "id",
}


def quiet() -> JobContext:
    return JobContext("rollup", quiet=True)


def append_timed(entries: Sequence[TimedDraft], store: str) -> None:
    async def write() -> None:
        async with open_database(store) as database:
            await write_timed(database, entries)

    asyncio.run(write())


def digest(store: str) -> str:
    """The hash of everything that rollups have."""

    def rows(reader: object) -> object:
        return [reader.query(f"SELECT * FROM {table} ORDER BY {keys}") for table, keys in TABLES.items()]  # type: ignore[attr-defined]

    return hashlib.sha256(repr(query_store_once(store, rows)).encode()).hexdigest()


def counted(store: str, width: str) -> Counter[tuple[int, str, str, str]]:
    found = query_store_once(store, lambda reader: read_counts(reader, width, 0, ALWAYS))
    return Counter({(one.start_ms, one.tenant, one.type, one.tool): one.entries for one in found})


def durations_in(store: str, width: str) -> dict[tuple[int, str, str, str, str], tuple[Histogram, int]]:
    found = query_store_once(store, lambda reader: read_durations(reader, width, 0, ALWAYS))
    return {
        (one.start_ms, one.tenant, one.measure, one.tool, one.outcome): (one.histogram, one.unpaired) for one in found
    }


def effect(
    ts_ms: int, verb: str, tool: str, run_id: str, key: str, tenant: str = "shop", **facts: object
) -> TimedDraft:
    payload = json.dumps({"tool": tool, "idempotency_key": key, "status": verb, **facts})
    return TimedDraft(ts_ms, f"/tape/effect/{verb}/{tool}/{run_id}", run_id, tenant, payload)


def run(ts_ms: int, verb: str, run_id: str, tenant: str = "shop") -> TimedDraft:
    return TimedDraft(ts_ms, f"/tape/run/{verb}/{tenant}/ada/s1/{run_id}", run_id, tenant, "{}")


ENDS = [["confirmed"], ["confirmed"], ["failed"], [], ["failed", "confirmed"], ["reconciled"], ["unknown"]]


def generate_runs(seed: int, runs: int) -> list[TimedDraft]:
    """Runs of two tenants with effects that succeed, fail, are retried, reconciled, left open or settled twice."""
    dice = random.Random(seed)
    found: list[TimedDraft] = []
    for number in range(runs):
        run_id, tenant = f"r{number}", dice.choice(["shop", "bank"])
        at = START + dice.randrange(3 * 3_600_000)
        found.append(run(at, "running", run_id, tenant))
        for call in range(dice.randrange(4)):
            tool, key = dice.choice(["pay", "mail", "a%20b"]), f"{run_id}/{call}"
            at += dice.randrange(2_000)
            found.append(effect(at, "pending", tool, run_id, key, tenant))
            if dice.random() < 0.3:
                at += dice.randrange(60_000)
                found.append(effect(at, "pending", tool, run_id, key, tenant, transition="dispatch-retry-scheduled"))
            at += dice.choice([dice.randrange(300), dice.randrange(5_000_000)])
            ends = dice.choice(
                [["confirmed"], ["confirmed"], ["failed"], [], ["failed", "confirmed"], ["reconciled"], ["unknown"]]
            )
            for verb in ends:
                facts = {"resolved_to": dice.choice([2, 3, 4])} if verb == "reconciled" else {}
                found.append(effect(at, verb, tool, run_id, key, tenant, **facts))
                at += dice.randrange(500)
        if dice.random() < 0.8:
            found.append(run(at, dice.choice(["terminal", "terminal", "failed", "cancelled", "stuck"]), run_id, tenant))
    return sorted(found, key=lambda one: one.ts_ms)


def by_hand(entries: Sequence[TimedDraft], width: int) -> dict[tuple[int, str, str, str, str], tuple[list[int], int]]:
    """Durations and ends without a beginning, one entry after the other."""
    began: dict[tuple[str, str], int] = {}
    found: dict[tuple[int, str, str, str, str], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for one in entries:
        kind, verb = one.subject.split("/")[2:4]
        payload = json.loads(one.payload_json)
        name = (one.run_id, payload.get("idempotency_key", ""))
        tool = payload.get("tool", "").replace("%20", " ")
        if verb in ("running", "pending"):
            began.setdefault(name, one.ts_ms)
            continue
        outcome = {2: "confirmed", 3: "failed"}.get(payload.get("resolved_to"), "") if verb == "reconciled" else verb
        if outcome in ("", "unknown"):
            continue
        durations, unpaired = found[one.ts_ms // width * width, one.tenant, kind, tool, outcome]
        if name in began:
            durations.append(one.ts_ms - began.pop(name))
        else:
            unpaired.append(1)
    return {key: (durations, len(unpaired)) for key, (durations, unpaired) in found.items()}


def test_the_numbers_are_those_of_the_journal(spark: SparkSession, orders: str) -> None:
    assert rollup(spark, orders, quiet(), round_entries=600) == 1000
    fill(orders, [order(number) for number in range(1001, 1051)])
    assert rollup(spark, orders, quiet()) == 50
    assert rollup(spark, orders, quiet()) == 0
    entries = entries_in(orders)
    for name, width in WIDTHS_MS.items():
        expected = Counter((entry.ts_ms // width * width, entry.tenant, entry.type, "") for entry in entries)
        assert counted(orders, name) == expected
    rows = query_store_once(orders, lambda reader: read_counts(reader, "day", 0, ALWAYS))
    assert sum(one.bytes for one in rows) == sum(len(entry.payload_json.encode()) for entry in entries)
    assert query_store_once(orders, read_position) == RollupPosition(1050, 0, entries[-1].ts_ms, 0)


def test_durations_are_the_same_however_the_journal_is_cut(spark: SparkSession, store_url: str, tmp_path: Path) -> None:
    entries = generate_runs(1, 120)
    append_timed(entries, store_url)
    assert rollup(spark, store_url, quiet()) == len(entries)
    for name, width in WIDTHS_MS.items():
        expected = {key: (histogram_of(one), unpaired) for key, (one, unpaired) in by_hand(entries, width).items()}
        assert durations_in(store_url, name) == expected
    tools = Counter(key[3] for key, number in counted(store_url, "day").items())
    assert set(tools) == {"", "pay", "mail", "a b"}
    if store_url.startswith("sqlite"):
        again = f"sqlite:{tmp_path / 'again.db'}"
        append_timed(entries, again)
        assert rollup(spark, again, quiet(), round_entries=len(entries) // 3) == len(entries)
        assert digest(again) == digest(store_url)
        assert query_store_once(again, read_open)


def test_two_tenants_with_the_same_run_and_effect_have_two_spans(spark: SparkSession, sqlite_url: str) -> None:
    begun = [effect(START, "pending", "pay", "r1", "k1"), effect(START + 1_000, "pending", "pay", "r1", "k1", "bank")]
    append_timed(begun, sqlite_url)
    rollup(spark, sqlite_url, quiet())
    append_timed([effect(START + 5_000, "confirmed", "pay", "r1", "k1", "bank")], sqlite_url)
    rollup(spark, sqlite_url, quiet())
    assert [one.key for one in query_store_once(sqlite_url, read_open)] == [("r1", "shop", "effect", "k1")]
    assert durations_in(sqlite_url, "minute") == {
        (START, "bank", "effect", "pay", "confirmed"): (histogram_of([4_000]), 0)
    }


def test_a_confirmation_that_comes_rounds_later_has_its_duration(spark: SparkSession, sqlite_url: str) -> None:
    append_timed([effect(START, "pending", "pay", "r1", "k1"), run(START + 1, "running", "r1")], sqlite_url)
    rollup(spark, sqlite_url, quiet())
    still_open = [one.key for one in query_store_once(sqlite_url, read_open)]
    assert still_open == [("r1", "shop", "effect", "k1"), ("r1", "shop", "run", "")]
    append_timed([effect(START + 5_000, "pending", "pay", "r1", "k1"), order_at(START + 6_000)], sqlite_url)
    rollup(spark, sqlite_url, quiet())
    append_timed([effect(START + 90_000, "confirmed", "pay", "r1", "k1")], sqlite_url)
    rollup(spark, sqlite_url, quiet())
    assert durations_in(sqlite_url, "minute") == {
        (START + 60_000, "shop", "effect", "pay", "confirmed"): (histogram_of([90_000]), 0)
    }
    assert [one.key for one in query_store_once(sqlite_url, read_open)] == [("r1", "shop", "run", "")]


def order_at(ts_ms: int) -> TimedDraft:
    return TimedDraft(ts_ms, "/tape/order/created/1", "o1", "shop", "{}")


def test_late_entries_are_counted_in_their_minute_and_as_late(spark: SparkSession, sqlite_url: str) -> None:
    minutes = [0, 1, 3, 2, 3, 1, 4, 0]  # three entries came after a later minute had begun
    entries = [order_at(START + minute * 60_000) for minute in minutes]
    append_timed(entries, sqlite_url)
    assert rollup(spark, sqlite_url, quiet(), round_entries=5) == 8
    found = counted(sqlite_url, "minute")
    assert [found[START + minute * 60_000, "shop", "order.created", ""] for minute in range(5)] == [2, 2, 1, 2, 1]
    position = query_store_once(sqlite_url, read_position)
    assert (position.late, position.watermark_ms) == (3, START + 240_000)
    assert position.complete == (0, 0)


def test_a_batch_that_another_job_has_counted_is_not_added_again(store_url: str) -> None:
    open_database(store_url).migrate()
    minutes = [CountRollup(60_000, "t", "a.b", "", 5, 50), CountRollup(120_000, "t", "a.b", "", 2, 20)]
    batch = RollupBatch(0, RollupPosition(7), minutes, [], [], [])
    assert transact(store_url, lambda tx: add_batch(tx, batch))
    assert not transact(store_url, lambda tx: add_batch(tx, batch))
    assert query_store_once(store_url, read_position).global_seq == 7
    assert counted(store_url, "hour") == {(0, "t", "a.b", ""): 7}
    assert counted(store_url, "minute") == {(60_000, "t", "a.b", ""): 5, (120_000, "t", "a.b", ""): 2}


def test_a_pruned_journal_is_counted_from_its_oldest_entry(spark: SparkSession, sqlite_url: str) -> None:
    fill(sqlite_url, [order(number) for number in range(1, 21)])

    async def forget() -> None:
        async with open_database(sqlite_url) as database:
            await prune(database, before_seq=11)

    asyncio.run(forget())
    assert rollup(spark, sqlite_url, quiet()) == 11  # and the note of the pruning
    position = query_store_once(sqlite_url, read_position)
    assert position.global_seq == 21
    # The minute that the journal begins in now lacks what was pruned of it.
    assert position.since_ms > position.watermark_ms - 60_000


def test_what_was_pruned_before_it_was_counted_is_counted_from_the_archive(
    spark: SparkSession, sqlite_url: str, tmp_path: Path
) -> None:
    entries = generate_runs(3, 20)
    append_timed(entries, sqlite_url)
    expected = {key: (histogram_of(one), unpaired) for key, (one, unpaired) in by_hand(entries, 86_400_000).items()}
    lake = str(tmp_path / "lake")
    archive(spark, sqlite_url, lake, quiet())

    async def forget() -> None:
        async with open_database(sqlite_url) as database:
            await prune(database, before_seq=len(entries) // 2)

    asyncio.run(forget())
    assert rollup(spark, sqlite_url, quiet(), lake=lake) == len(entries) + 1  # and the note of the pruning
    assert durations_in(sqlite_url, "day") == expected
    assert query_store_once(sqlite_url, read_position).since_ms == 0


KILLED = """
import os, signal, sys
import msgspec
from tape.engine.ledgers.rollups import RollupBatch, add_batch
from tape.pipeline.batch_writer import transact

batch = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=RollupBatch)

def write_and_die(tx):
    assert add_batch(tx, batch)
    print("written", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

transact(sys.argv[1], write_and_die)
"""


def test_killed_between_writing_and_committing_the_tables_are_those_of_one_clean_run(
    spark: SparkSession, store_url: str, tmp_path: Path
) -> None:
    entries = generate_runs(2, 60)
    append_timed(entries, store_url)
    third = len(entries) // 3
    for number in range(3):
        position = query_store_once(store_url, read_position)
        batch = read_batch(spark, store_url, "", position, position.global_seq, position.global_seq + third)
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, store_url], input=msgspec.msgpack.encode(batch), capture_output=True
        )
        assert (killed.returncode, killed.stdout) == (-9, b"written\n"), killed.stderr
        assert query_store_once(store_url, read_position) == position
        assert transact(store_url, lambda tx, batch=batch: add_batch(tx, batch)), number  # type: ignore[misc]
    rollup(spark, store_url, quiet())
    clean = f"sqlite:{tmp_path / 'clean.db'}"
    append_timed(entries, clean)
    rollup(spark, clean, quiet())
    assert digest(store_url) == digest(clean)


DRIVER = """
import os, signal, sys
from tape.engine.ledgers.rollups import add_batch
from tape.pipeline.jobs import rollup as job
from tape.pipeline.job_context import JobContext
from tape.pipeline.session import QUICK_JVM, open_session

store, size, deadly = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rounds = 0

def add_or_die(tx, batch):
    global rounds
    rounds += 1
    done = add_batch(tx, batch)
    if rounds == deadly:
        os.kill(os.getpid(), signal.SIGKILL)
    return done

job.add_batch = add_or_die
spark = open_session("killed", "local[2]", {"spark.driver.memory": "1g"}, quick=True)
job.rollup(spark, store, JobContext("rollup", quiet=True), round_entries=size)
"""


@pytest.mark.proof
def test_a_driver_that_is_killed_again_and_again_leaves_what_one_clean_run_does(
    spark: SparkSession, store_url: str, tmp_path: Path
) -> None:
    entries = generate_runs(4, 200)
    append_timed(entries, store_url)
    codes = []
    for deadly in (1, 2, 3, 0):
        command = [sys.executable, "-c", DRIVER, store_url, str(len(entries) // 6), str(deadly)]
        codes.append(subprocess.run(command, capture_output=True, check=False).returncode)
    assert codes == [-9, -9, -9, 0]
    clean = f"sqlite:{tmp_path / 'clean.db'}"
    append_timed(entries, clean)
    rollup(spark, clean, quiet())
    assert digest(store_url) == digest(clean)
