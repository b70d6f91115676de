"""What it costs that every entry is checked when it is read: the same replay with and without, in turns."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Callable
from statistics import median

from bench.lab import Lab, TapeServer, cpu_seconds
from bench.options import NAMES, Options
from bench.table import Table, count
from tape.client import AsyncTapeClient
from tape.journal.journal import Journal
from tape.model.entry import Draft
from tape.store import open_database

TITLE = "Checksums: replay with and without the check"

ENTRIES, QUICK_ENTRIES = 100_000, 2_000
ROUNDS = 5
SIZES = {"300 B": 300, "4 KiB": 4_096}
BATCH = 256
TIMEOUT_S = 60
TICK_S = 0.01
AIM = "≤ 10 %"

Replay = Callable[[Lab, TapeServer, int], None]

# A server that takes rows as they are.
UNCHECKED = """
from tape.journal import pages, ranges
from tape.model.checksum import COUNT
from tape.model.entry import Entry
pages.entries_of = ranges.entries_of = lambda reader, rows: ([Entry(*row[:COUNT]) for row in rows], [])
pages.fetch_in_order = ranges.fetch_in_order = lambda fetch, *bounds: fetch(*bounds)
from tape.cli import main
main()
"""


class UncheckedServer(TapeServer):
    """`tape serve`, but entries are not checked."""

    def __init__(self, store: str) -> None:
        super().__init__(store)
        self._command[:1] = [sys.executable, "-c", UNCHECKED]


def run(options: Options) -> list[Table]:
    """Every way to replay, on both stores."""
    rounds, entries = options.scaled(ROUNDS, 1), options.scaled(ENTRIES, QUICK_ENTRIES)
    rows = []
    for kind in options.stores:
        for label, size in SIZES.items():
            wanted = entries if size < 1_000 else entries // 4
            store = options.lab.fresh_store(kind)
            options.report(f"{TITLE}: {NAMES[kind]}, {label}")
            options.lab.run(_fill(store, wanted, size))
            with TapeServer(store) as checked, UncheckedServer(store) as unchecked:
                for name, replay in WAYS.items():
                    pairs = [
                        [_cpu_us(options.lab, server, replay, wanted) for server in (checked, unchecked)]
                        for _ in range(rounds)
                    ]
                    with_check, without = (median(column) for column in zip(*pairs, strict=True))
                    cost = median(after / before - 1 for after, before in pairs)
                    figures = [f"{with_check:.2f}", f"{without:.2f}", f"{100 * cost:.1f} %"]
                    rows.append([f"{NAMES[kind]}, {label}: {name}", count(wanted), *figures, AIM])
    columns = ["", "entries", "µs an entry, checked", "unchecked", "cost", "aim"]
    return [Table(TITLE, columns, rows, [f"processor time of the server; in turns, medians of {rounds} rounds"])]


def _cpu_us(lab: Lab, server: TapeServer, replay: Replay, wanted: int) -> float:
    before = cpu_seconds(server.pid)
    replay(lab, server, wanted)
    # The clock ticks every 10 ms: a quick run may see none.
    return 1e6 * max(cpu_seconds(server.pid) - before, TICK_S) / wanted


def _follow_batches(lab: Lab, server: TapeServer, wanted: int) -> None:
    lab.run(_follow(server.url, wanted, in_batches=True))


def _follow_entries(lab: Lab, server: TapeServer, wanted: int) -> None:
    lab.run(_follow(server.url, wanted, in_batches=False))


def _read_stream(lab: Lab, server: TapeServer, wanted: int) -> None:
    with urllib.request.urlopen(f"{server.http_url}/v1/events?resume_seq=0", timeout=TIMEOUT_S) as response:
        for line in response:
            wanted -= line.startswith(b"id:")
            if not wanted:
                return


WAYS: dict[str, Replay] = {"Follow": _follow_batches, "SDK": _follow_entries, "SSE": _read_stream}


async def _follow(url: str, wanted: int, *, in_batches: bool) -> None:
    got = 0
    async with AsyncTapeClient(url) as client:
        if in_batches:
            async for batch in client.follow_batches("/tape/order/**"):
                got += len(batch.entries)
                if got >= wanted:
                    return
        async for _ in client.follow("/tape/order/**"):
            got += 1
            if got == wanted:
                return


async def _fill(store: str, entries: int, size: int) -> None:
    payload = json.dumps({"text": "x" * (size - 12)})
    async with open_database(store) as database:
        journal = Journal(database)
        for start in range(0, entries, BATCH):
            numbers = range(start, min(start + BATCH, entries))
            await journal.append(
                [Draft(subject=f"/tape/order/paid/{n}", run_id=f"r-{n % 100}", payload_json=payload) for n in numbers]
            )
