"""Pools: what a flood on one pool does to an execution on another, and how many playbooks run in a second."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from statistics import median

from bench.lab import TAPE, TapeServer, stop
from bench.load import percentile
from bench.options import NAMES, Options
from bench.table import NOTHING, Table, count, milliseconds, ratio
from tape.client import AsyncTapeClient
from tape.proto import tape_pb2 as pb

TITLE = "Pools"
BATCH = 1_000
CONCURRENCY = 8
PLAYBOOK = """\
kind: Playbook
metadata: {path: bench/reading}
inputs: {n: integer}
workflow:
  - {step: double, tool: {kind: value, value: "{{ n * 2 }}"}}
"""
QUIET = "nothing else"
WAITING = "a backlog on pool iot, without a worker"
PACED = "a flood on pool iot, its worker with one slot"
WORKING = "a flood on pool iot, its worker at full speed"
SAME = "the same flood on pool shared"
CALLERS = 64


def run(options: Options) -> list[Table]:
    """Each store: probes alone, beside a backlog, beside a flood at work, and behind one on their own pool."""
    flood, probes = options.scaled((3_000, 40), (60, 5))
    latencies, rates = [], []
    for kind in options.stores:
        measured: dict[str, list[float]] = {}
        speeds: dict[str, list[float]] = {}
        for number in range(1, options.scaled(2, 1) + 1):
            options.report(f"{TITLE}: {NAMES[kind]}, round {number}")
            with TapeServer(options.lab.fresh_store(kind)) as server:
                waits, speed = options.lab.run(_measure(server.url, flood, probes))
            for name, found in waits.items():
                measured.setdefault(name, []).append(percentile(sorted(found), 0.5))
            for name, rate in speed.items():
                speeds.setdefault(name, []).append(rate)
        quiet = median(measured[QUIET])
        for name, found in measured.items():
            times = NOTHING if name == QUIET else ratio(median(found), quiet)
            latencies.append([f"{NAMES[kind]}: {name}", milliseconds(median(found)), times])
        rates += [[f"{NAMES[kind]}: {name}", count(median(found))] for name, found in speeds.items()]
    notes = [
        f"one step that computes; {CONCURRENCY} slots in each worker; the flood is {flood:,} executions",
        f"from the call of execute to the end of the run as a follower sees it; median of {probes}, one at a time",
        "behind a flood on its own pool: one probe, until it has had its turn",
        "server, workers and caller share the machine: at full speed the flood's work takes its share of it",
    ]
    return [
        Table("Pools", ["an execution on pool shared, beside", "p50 ms", "÷ nothing else"], latencies, notes),
        Table(
            "Executions",
            ["", "runs/s"],
            rates,
            [
                "every run is begun, taken up, its step recorded before and after, and ended",
                f"bare calls: GetHead, which reads one row, by {CALLERS} callers of one client",
            ],
        ),
    ]


async def _measure(url: str, flood: int, probes: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    waits: dict[str, list[float]] = {}
    size = flood
    async with AsyncTapeClient(url) as client:
        await client.register_resource(PLAYBOOK)
        with worker(url, "shared"):
            await _probe(client, max(probes // 5, 2))
            waits[QUIET] = await _probe(client, probes)
            began = time.perf_counter()
            await _flood(client, "iot", flood)
            begun = flood / (time.perf_counter() - began)
            waits[WAITING] = await _probe(client, probes)
            with worker(url, "iot", 1):
                await until_left(client, "iot", flood - 1)
                waits[PACED] = await _probe(client, probes, until=lambda: _left(client, "iot"))
            with worker(url, "iot"):
                flood = await _left(client, "iot")
                await until_left(client, "iot", max(flood - 1, 0))
                began, left = time.perf_counter(), await _left(client, "iot")
                waits[WORKING] = await _probe(client, probes, until=lambda: _left(client, "iot"))
                await until_left(client, "iot", 0)
                done = left / (time.perf_counter() - began)
            await _flood(client, "shared", size)
            waits[SAME] = await _probe(client, 1)
        alone = await _alone(client, url, size)
        bare = await _bare(client, size)
    return waits, {
        f"begun, {BATCH:,} a call": begun,
        f"run to their end by one worker with {CONCURRENCY} slots": alone,
        "the same beside the probes": done,
        "bare calls a second": bare,
    }


async def _alone(client: AsyncTapeClient, url: str, size: int) -> float:
    """Runs a second that a worker carries to their end with nothing beside it, from the first one that it ends."""
    await _flood(client, "alone", size)
    with worker(url, "alone"):
        await until_left(client, "alone", size - 1)
        began, left = time.perf_counter(), await _left(client, "alone")
        await until_left(client, "alone", 0)
        return left / (time.perf_counter() - began)


async def _bare(client: AsyncTapeClient, calls: int) -> float:
    """Calls a second that do next to nothing: what the way to a server and back allows."""

    async def call() -> None:
        for _ in range(-(-calls // CALLERS)):
            await client.head()

    began = time.perf_counter()
    await asyncio.gather(*(call() for _ in range(CALLERS)))
    return -(-calls // CALLERS) * CALLERS / (time.perf_counter() - began)


@contextlib.contextmanager
def worker(url: str, pool: str, slots: int = CONCURRENCY) -> Iterator[None]:
    """A worker process of a pool."""
    command = [TAPE, "worker", "--pool", pool, "-c", str(slots), "--url", url, "--log-level", "error"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield
    finally:
        stop(process)


async def _flood(client: AsyncTapeClient, pool: str, size: int) -> None:
    for start in range(0, size, BATCH):
        numbers = range(start, min(start + BATCH, size))
        await client.execute_many(
            [pb.Execution(path="bench/reading", payload_json=f'{{"n": {n}}}', execution_pool=pool) for n in numbers]
        )


async def _probe(
    client: AsyncTapeClient, probes: int, until: Callable[[], Awaitable[int]] | None = None
) -> list[float]:
    """Milliseconds from the call of execute to the end of the run; ends early when the flood beside it is over.

    One is measured in any case: a flood as small as that of `--quick` may be over before it begins.
    """
    head = (await client.head()).global_seq
    ends: dict[str, float] = {}
    seen = asyncio.Event()

    async def follow() -> None:
        async for entry in client.follow("/tape/run/terminal/**", from_global_seq=head):
            ends[entry.run_id] = time.perf_counter()
            seen.set()

    following = asyncio.create_task(follow())
    waits = []
    try:
        for number in range(probes):
            if waits and until is not None and not await until():
                break
            asked = time.perf_counter()
            execution = (await client.execute("bench/reading", {"n": number})).execution_id
            while execution not in ends:
                seen.clear()
                await seen.wait()
            waits.append((ends[execution] - asked) * 1_000)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    return waits


async def _left(client: AsyncTapeClient, pool: str) -> int:
    stats = (await client.get_reaction_stats(f"pool:{pool}")).stats[0]
    return stats.lag + stats.pending + stats.claimed


async def until_left(client: AsyncTapeClient, pool: str, left: int) -> None:
    """Wait until a pool has no more than so many tasks left."""
    while await _left(client, pool) > left:
        await asyncio.sleep(0.02)
