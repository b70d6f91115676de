"""The dispatcher: tasks through real handlers, beside queues whose workers do the same."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from bench.lab import TapeServer, draft
from bench.load import event, percentile
from bench.options import NAMES, Options
from bench.peers.queues import Figures, library
from bench.peers.servers import NotInstalled
from bench.table import NOTHING, Table, count, milliseconds, ratio
from tape.client import AsyncTapeClient
from tape.reactions import Envelope
from tape.reactions.dispatcher import Dispatcher

TITLE = "Dispatcher: draining and latency with real handlers"
WINDOW = 1_000
WARM_UP = 20
PEERS = {"pgqueuer": "bench.peers.queue_pgqueuer", "procrastinate": "bench.peers.queue_procrastinate"}
Handler = Callable[[Envelope], Any]


def run(options: Options) -> list[Table]:
    """Both kinds of handler on each store, and the peers on Postgres, in turns."""
    jobs, probes = options.scaled((3_000, 200), (200, 10))
    measured: dict[str, list[Figures]] = {}
    missing: dict[str, str] = {}
    for number in range(1, options.scaled(3, 1) + 1):
        for kind in options.stores:
            for is_async in (True, False):
                name = f"Tape on {NAMES[kind]}, {'async def' if is_async else 'def, on threads'}"
                options.report(f"{TITLE}: round {number}, {name}")
                with TapeServer(options.lab.fresh_store(kind)) as server:
                    figures = options.lab.run(_measure(server.url, jobs, probes, is_async))
                measured.setdefault(name, []).append(figures)
        for name, module in PEERS.items() if "postgres" in options.stores else ():
            if name in missing:
                continue
            options.report(f"{TITLE}: round {number}, {name}")
            try:
                figures = library(module, options.lab.fresh_store("postgres"), jobs, probes)
            except NotInstalled as error:
                missing[name] = str(error)
            else:
                measured.setdefault(name, []).append(figures)
    middle = {name: {key: median(each[key] for each in found) for key in found[0]} for name, found in measured.items()}
    ours = middle.get("Tape on Postgres, async def", {}).get("drain")
    rows = [
        [
            name,
            count(figures["drain"]),
            NOTHING if name.startswith("Tape") else ratio(ours, figures["drain"]),
            milliseconds(figures["p50_ms"]),
            milliseconds(figures["p99_ms"]),
        ]
        for name, figures in middle.items()
    ]
    rows += [[name, why, NOTHING, NOTHING, NOTHING] for name, why in missing.items()]
    notes = [
        f"drain: {jobs:,} tasks through a handler that does nothing, claim_max {WINDOW:,}, one dispatcher process",
        f"latency: {probes} events, one in flight, from the call that appends or enqueues to the handler",
        "every task of Tape gets an envelope with its payload parsed, and a context of its own",
        "the peers have their worker and their caller in one process and talk to the database directly",
    ]
    columns = ["", "drain/s", "Tape (Postgres, async def) ÷ it", "p50 ms", "p99 ms"]
    return [Table("Tasks through a dispatcher", columns, rows, notes)]


async def _measure(url: str, jobs: int, probes: int, is_async: bool) -> Figures:
    async with AsyncTapeClient(url) as client:
        for start in range(0, jobs, 1_000):
            await client.append_many([draft(number) for number in range(start, min(start + 1_000, jobs))])
        await _register(client, "drained", backfill=True)
        while (await client.get_reaction_stats("drained")).stats[0].matched < jobs:
            await asyncio.sleep(0.01)
        drain = await _drain(client, jobs, is_async)
        await client.deregister_reaction("drained")
        waits = sorted(await _probe(client, probes, is_async))
        return {"drain": drain, "p50_ms": percentile(waits, 0.5), "p99_ms": percentile(waits, 0.99)}


async def _register(client: AsyncTapeClient, reaction_id: str, **fields: Any) -> None:
    await client.register_reaction(
        reaction_id=reaction_id, subject_pattern="/tape/order/**", handler_kind=2, max_concurrency=100_000, **fields
    )


def _served(client: AsyncTapeClient, reaction_id: str, handler: Handler) -> Dispatcher:
    dispatcher = Dispatcher(client, claim_max=WINDOW)
    dispatcher.add(reaction_id, handler, max_concurrency=100_000)
    return dispatcher


async def _drain(client: AsyncTapeClient, jobs: int, is_async: bool) -> float:
    async def nothing(envelope: Envelope) -> None:
        return None

    dispatcher = _served(client, "drained", nothing if is_async else lambda envelope: None)
    began = time.perf_counter()
    running = asyncio.create_task(dispatcher.run())
    while dispatcher.tally.done < jobs:
        await asyncio.sleep(0.002)
    rate = jobs / (time.perf_counter() - began)
    dispatcher.stop()
    await running
    return rate


async def _probe(client: AsyncTapeClient, probes: int, is_async: bool) -> list[float]:
    """Milliseconds from the call that appends to the first line of the handler."""
    loop = asyncio.get_running_loop()
    handled: asyncio.Future[float] = loop.create_future()

    async def on_the_loop(envelope: Envelope) -> None:
        handled.set_result(time.perf_counter())

    def on_a_thread(envelope: Envelope) -> None:
        loop.call_soon_threadsafe(handled.set_result, time.perf_counter())

    await _register(client, "probed")
    dispatcher = _served(client, "probed", on_the_loop if is_async else on_a_thread)
    running = asyncio.create_task(dispatcher.run())
    waits = []
    for number in range(probes + WARM_UP):
        handled = loop.create_future()
        subject, run_id, payload = event(number)
        asked = time.perf_counter()
        sending = asyncio.create_task(client.append(subject, payload, run_id=run_id))
        waits.append((await handled - asked) * 1_000)
        await sending
        await asyncio.sleep(0.005)
    dispatcher.stop()
    await running
    return waits[WARM_UP:]
