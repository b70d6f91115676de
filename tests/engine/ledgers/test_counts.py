"""Counts: the same answer as counting the journal, whatever was folded and wherever the edges lie."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tape.engine.ledgers import counts
from tape.engine.ledgers.counts import count, fold
from tape.engine.ledgers.rollups import CountRollup, RollupBatch, RollupPosition, add_batch
from tape.engine.ledgers.window import Window
from tape.journal.identity_filter import IdentityFilter
from tape.store import Database, Reader
from tests.history import Past, write_past

START = 1_780_000_000_000  # in the middle of a slot
ANY_IDENTITY = IdentityFilter()


def history(entries: int, seed: int = 1) -> list[Past]:
    """Five hours of four sessions, times going up, many of them on edges of slots."""
    dice = random.Random(seed)
    times = sorted(
        START + (dice.randrange(300) * 60_000 if dice.random() < 0.3 else dice.randrange(5 * 3_600_000))
        for _ in range(entries)
    )
    return [
        (
            ts_ms,
            dice.choice(["order", "a.b"]),
            dice.choice(["created", "paid", "x.y", ""]),
            dice.choice(["shop", "other"]),
            "ada",
            dice.choice(["s1", "s2"]),
        )
        for ts_ms in times
    ]


def by_hand(past: list[Past], window: Window, whose: IdentityFilter) -> Counter[tuple[int, str, str]]:
    found: Counter[tuple[int, str, str]] = Counter()
    for ts_ms, kind, verb, tenant, user, session in past:
        ns = ts_ms * 1_000_000
        bucket = (ns - window.start_ns) // window.bucket_ns
        inside = 0 <= bucket < window.buckets
        inside &= window.since_ns is None or ns >= window.since_ns
        inside &= window.until_ns is None or ns < window.until_ns
        for wanted, value in ((whose.tenants, tenant), (whose.users, user), (whose.sessions, session)):
            inside &= wanted is None or value in wanted
        if inside:
            found[bucket, type_of(kind, verb), tenant] += 1
    return found


async def asked(database: Database, window: Window, whose: IdentityFilter) -> Counter[tuple[int, str, str]]:
    rows = await database.read(lambda reader: count(reader, window, whose))
    return Counter({(row.bucket, row.type, row.tenant): row.entries for row in rows})


async def roll_up(database: Database, past: list[Past], after: int, until: int) -> None:
    """Store what the rollup job would store for the entries up to a position."""
    found = Counter(
        (ts_ms // 60_000 * 60_000, tenant, type_of(kind, verb)) for ts_ms, kind, verb, tenant, *_ in past[after:until]
    )
    minutes = [CountRollup(*key[:2], key[2], "", entries, 0) for key, entries in found.items()]
    since_ms = (past[after][0] // 60_000 + 1) * 60_000 if after else 0
    batch = RollupBatch(0, RollupPosition(until, since_ms, past[until - 1][0]), minutes, [], [], [])
    assert await database.write(lambda tx: add_batch(tx, batch))


def type_of(kind: str, verb: str) -> str:
    return f"{kind}.{verb}" if verb else kind


@pytest.mark.parametrize(
    ("folded", "rolled_up"),
    [
        ("nothing", None),
        ("half", None),
        ("all", None),
        ("nothing", (0, 2000)),
        ("half", (0, 3000)),
        ("all", (500, 2500)),
    ],
)
async def test_counts_are_those_of_the_journal(
    database: Database, folded: str, rolled_up: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "FOLD_ENTRIES", 700)
    past = history(3000)
    await write_past(database, past)
    folds = {"nothing": 0, "half": 2, "all": 99}[folded]
    while folds and await fold(database):
        folds -= 1
    if rolled_up:
        await roll_up(database, past, *rolled_up)
    dice = random.Random(2)
    wants = [
        *(ANY_IDENTITY, IdentityFilter(["shop"]), IdentityFilter(["shop", "other"]), IdentityFilter(["unknown"])),
        *(IdentityFilter(["shop"], ["ada"], ["s1"]), IdentityFilter(["shop", "other"], None, ["s2"])),
    ]
    for number in range(60):
        bucket = dice.choice([60, 900, 3600, 86_400, 7, 0.0015, 61]) * 1_000_000_000 + dice.choice([0, 0, 1])
        start = START * 1_000_000 + dice.randrange(-3_600, 4 * 3_600) * 1_000_000_000 + dice.choice([0, 1, 999_999])
        if dice.random() < 0.5:
            start = start // (bucket or 1) * bucket if dice.random() < 0.5 else start // 60_000_000_000 * 60_000_000_000
        since = start + dice.randrange(10**12) if dice.random() < 0.3 else None
        until = start + dice.randrange(10**13) if dice.random() < 0.3 else None
        window = Window(start, int(bucket), dice.randrange(1, 100), since, until)
        whose = wants[number % len(wants)]
        assert await asked(database, window, whose) == by_hand(past, window, whose), (window, whose)


async def test_types_and_runs_narrow(database: Database) -> None:
    past = history(300)
    await write_past(database, past)
    await fold(database)
    window = Window(START * 1_000_000, 5 * 3_600_000_000_000, 1)
    rows = await database.read(lambda reader: count(reader, window, ANY_IDENTITY, types=["order.paid", "a.b"]))
    assert {row.type for row in rows} == {"order.paid", "a.b"}
    rows = await database.read(lambda reader: count(reader, window, ANY_IDENTITY, runs=["run-1", "run-2"]))
    assert sum(row.entries for row in rows) == 200


async def test_processes_that_fold_at_once_count_once(store_url: str, database: Database) -> None:
    await write_past(database, history(500))
    first = await database.read(counts._read_fold)
    assert await fold(database)
    await database.write(lambda tx: counts._write_fold(tx, first))
    window = Window(START * 1_000_000, 5 * 3_600_000_000_000, 1)
    assert sum((await asked(database, window, ANY_IDENTITY)).values()) == 500


async def test_a_day_in_96_buckets_reads_sums_and_not_the_journal(database: Database) -> None:
    await write_past(database, history(5000))
    while await fold(database):
        pass
    window = Window(START * 1_000_000, 900_000_000_000, 96)
    looked_at: list[str] = []

    def explain(reader: Reader) -> None:
        sql, values = counts._sql(reader, window, IdentityFilter(["shop"], ["ada"], ["s1"]))
        prefix = "EXPLAIN QUERY PLAN" if reader.dialect == "sqlite" else "EXPLAIN"
        if reader.dialect == "postgres":
            # Small tables are scanned whatever the indexes.
            reader.query("SELECT set_config('enable_seqscan', 'off', false)")
        looked_at.extend(" ".join(map(str, row)) for row in reader.query(f"{prefix} {sql}", *values))

    await database.read(explain)
    plan = "\n".join(looked_at)
    assert "tape_counts_identity" in plan
    assert "tape_slots_slot" in plan
    assert "SCAN tape_journal" not in plan
    assert "Seq Scan" not in plan


async def test_whole_tenants_are_counted_from_rollups_and_only_the_edges_from_slots(database: Database) -> None:
    past = history(2000)
    await write_past(database, past)
    while await fold(database):
        pass
    await roll_up(database, past, 0, 2000)
    await database.write(
        lambda tx: tx.execute("UPDATE tape_rollups SET entries = 1000 * entries WHERE width_ms = 60000")
    )
    window = Window((START // 60_000 + 1) * 60_000 * 1_000_000, 900_000_000_000, 8)
    expected = by_hand(past, window, ANY_IDENTITY)
    found = await asked(database, window, ANY_IDENTITY)
    assert found == Counter({key: 1000 * entries for key, entries in expected.items()})
    assert await asked(database, window, IdentityFilter(None, ["ada"])) == expected

    def plan(reader: Reader) -> str:
        sql, values = counts._sql(reader, window, IdentityFilter(["shop"]))
        if reader.dialect == "postgres":
            reader.query("SELECT set_config('enable_seqscan', 'off', false)")
        prefix = "EXPLAIN QUERY PLAN" if reader.dialect == "sqlite" else "EXPLAIN"
        return "\n".join(" ".join(map(str, row)) for row in reader.query(f"{prefix} {sql}", *values))

    shown = await database.read(plan)
    assert "SEARCH tape_rollups USING PRIMARY KEY" in shown or "tape_rollups_pkey" in shown
    assert "SCAN tape_journal" not in shown
    assert "Seq Scan" not in shown
