"""How fast a subscriber that begins with the oldest entry gets to the newest."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from statistics import median

from bench.lab import TapeServer
from bench.options import NAMES, Options
from bench.raw import connect
from bench.table import NOTHING, Table, count, ratio
from tape.client import AsyncTapeClient

TITLE = "Replay: from the oldest entry to the newest"

ENTRIES, QUICK_ENTRIES = 1_000_000, 5_000
# Each is a gRPC message of its own there.
ONE_BY_ONE, QUICK_ONE_BY_ONE = 100_000, 1_000
AIM = 100_000

Reader = Callable[[AsyncTapeClient, int], Awaitable[int]]


def run(options: Options) -> list[Table]:
    """Every way to follow, beside a SELECT of the same rows."""
    entries = options.scaled(ENTRIES, QUICK_ENTRIES)
    ways: list[tuple[str, Reader, int, str]] = [
        ("SubscribeBySubject, one by one", _one_by_one, options.scaled(ONE_BY_ONE, QUICK_ONE_BY_ONE), NOTHING),
        ("Follow, in the batches that travel", read_batches, entries, f"> {AIM:,}/s"),
        ("Follow, as Entry objects", _as_entries, entries, NOTHING),
    ]
    rounds = options.scaled(3, 1)
    rows = []
    for kind in options.stores:
        options.report(f"{TITLE}: filling {NAMES[kind]} with {entries:,} entries")
        store = options.lab.filled_store(kind, entries)
        selected = median(_select(store) for _ in range(rounds))
        with TapeServer(store) as server:
            for name, read, wanted, aim in ways:
                options.report(f"{TITLE}: {NAMES[kind]}, {name}")
                rate = median(options.lab.run(_measure(server.url, read, wanted)) for _ in range(rounds))
                rows.append([f"{NAMES[kind]}: {name}", count(wanted), count(rate), ratio(rate, selected), aim])
        rows.append([f"{NAMES[kind]}: SELECT through the driver", count(entries), count(selected), NOTHING, NOTHING])
    columns = ["", "entries", "entries/s", "÷ SELECT", "aim"]
    notes = [f"one subscriber in one process, the server in another; median of {rounds} rounds"]
    return [Table(TITLE, columns, rows, notes)]


async def _measure(url: str, read: Reader, wanted: int) -> float:
    async with AsyncTapeClient(url) as client:
        await client.head()
        began = time.perf_counter()
        got = await read(client, wanted)
        return got / (time.perf_counter() - began)


async def _one_by_one(client: AsyncTapeClient, wanted: int) -> int:
    return await _count(client.subscribe_by_subject(subject_pattern="/tape/order/**"), wanted)


async def _as_entries(client: AsyncTapeClient, wanted: int) -> int:
    return await _count(client.follow("/tape/order/**"), wanted)


async def read_batches(client: AsyncTapeClient, wanted: int, after: int = 0) -> int:
    """Follow from a cursor until at least so many entries have arrived; their number."""
    got = 0
    async for batch in client.follow_batches("/tape/order/**", from_global_seq=after):
        got += len(batch.entries)
        if got >= wanted:
            break
    return got


async def _count(entries: AsyncIterator[object], wanted: int) -> int:
    got = 0
    async for _ in entries:
        got += 1
        if got == wanted:
            break
    return got


def _select(store: str) -> float:
    driver = connect(store)
    try:
        began = time.perf_counter()
        entries = sum(1 for _ in driver.select(0))
        return entries / (time.perf_counter() - began)
    finally:
        driver.close()
