"""The latency of one durable append when there is no other client."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from statistics import median

from bench.lab import TapeServer
from bench.load import Bounds, Outcome, event, run_callers, summarize
from bench.options import NAMES, Options
from bench.raw import connect, rows_of
from bench.table import NOTHING, Table, count, milliseconds, ratio
from tape.client import AsyncTapeClient
from tape.client.upgrade import Transport

TITLE = "Latency: one caller, one entry at a time"


def run(options: Options) -> list[Table]:
    """Tape beside a bare INSERT and COMMIT of the same rows, in turns."""
    bounds = options.scaled(Bounds(3_000, 5.0), Bounds(100, 1.0))
    rounds = options.scaled(3, 1)
    rows = []
    for kind in options.stores:
        measured: dict[str, list[Outcome]] = {}
        for number in range(1, rounds + 1):
            options.report(f"{TITLE}: {NAMES[kind]}, round {number}")
            for name, outcome in measure_store(options, kind, bounds).items():
                measured.setdefault(name, []).append(outcome)
        bare = median(outcome.p50_ms for outcome in measured[f"{NAMES[kind]}: INSERT, COMMIT"])
        for name, outcomes in measured.items():
            p50_ms = median(outcome.p50_ms for outcome in outcomes)
            rows.append(
                [
                    name,
                    milliseconds(p50_ms),
                    milliseconds(median(outcome.p99_ms for outcome in outcomes)),
                    count(median(outcome.rate for outcome in outcomes)),
                    count(median(outcome.cpu_us for outcome in outcomes)) if outcomes[0].cpu_us else NOTHING,
                    NOTHING if p50_ms == bare else ratio(p50_ms, bare),
                ]
            )
    notes = [
        f"median of {rounds} rounds, each on a fresh store",
        "the bare INSERT is one autocommitted statement on the same table, without chain, heads or request ids to keep",
        "GetHead is a call that reads one row: what the way to the server and back costs",
        'by gRPC: the SDK with transport="grpc", on the same server before; otherwise it calls in frames',
    ]
    return [Table(TITLE, ["", "p50 ms", "p99 ms", "calls/s", "server CPU µs", "p50 ÷ bare p50"], rows, notes)]


def measure_store(options: Options, kind: str, bounds: Bounds) -> dict[str, Outcome]:
    """A durable append, a call that writes nothing, and what the driver needs for the same rows."""
    store = options.lab.fresh_store(kind)
    with TapeServer(store) as server:
        append_by_grpc, ask_by_grpc = options.lab.run(_call(server, options.warm_up, bounds, "grpc"))
        appended, asked = options.lab.run(_call(server, options.warm_up, bounds, "auto"))
    return {
        f"{NAMES[kind]}: append through the SDK": appended,
        f"{NAMES[kind]}: append by gRPC": append_by_grpc,
        f"{NAMES[kind]}: GetHead through the SDK": asked,
        f"{NAMES[kind]}: GetHead by gRPC": ask_by_grpc,
        f"{NAMES[kind]}: INSERT, COMMIT": _insert(options.lab.fresh_store(kind), store, appended.entries),
    }


async def _call(server: TapeServer, warm_up: Bounds, bounds: Bounds, transport: Transport) -> tuple[Outcome, Outcome]:
    async with AsyncTapeClient(server.url, transport=transport) as client:

        async def append(number: int) -> int:
            subject, run_id, payload = event(number)
            return await client.append(subject, payload, run_id=run_id)

        async def ask(number: int) -> object:
            return await client.head()

        async def measure(call: Callable[[int], Awaitable[object]]) -> Outcome:
            await run_callers(call, 1, warm_up)
            return await server.measure(run_callers(call, 1, bounds))

        asked = await measure(ask)  # first: the last entries are those of the appends that count
        return await measure(append), asked


def _insert(store: str, written_by_tape: str, entries: int) -> Outcome:
    rows = rows_of(written_by_tape)
    warm_up, measured = rows[:-entries], rows[-entries:]
    driver = connect(store)
    try:
        for row in warm_up:
            driver.insert(row)
        latencies = []
        began = time.perf_counter()
        for row in measured:
            started = time.perf_counter()
            driver.insert(row)
            latencies.append(time.perf_counter() - started)
        return summarize(latencies, time.perf_counter() - began)
    finally:
        driver.close()
