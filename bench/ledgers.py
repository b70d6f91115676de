"""What the calls that make a run durable cost, beside their bare transactions, and whether that stays so."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

from bench.fill import NAMESPACE, fill, run_id, session_ids, value_key
from bench.lab import TapeServer
from bench.load import CALLERS, Bounds, Outcome, run_callers
from bench.options import NAMES, Options
from bench.recorder import record, replay
from bench.table import Table, count, milliseconds, ratio
from tape.client import AsyncTapeClient
from tape.client.upgrade import Transport
from tape.engine.ledgers import effects, runs, values
from tape.engine.ledgers.effects import Effect
from tape.engine.ledgers.runs import Run
from tape.model.ledger_states import EffectStatus, RunStatus
from tape.store import Database, Transaction, open_database

TITLE = "Ledgers: runs, effects and values"
PAIR = "BeginEffect, CompleteEffect"
OPERATIONS = ("BeginRun", PAIR, "WriteValue")
FEW_ROWS, MANY_ROWS = 10_000, 5_000_000
# Odd and far from a power of two: numbers in a row fall far apart.
STRIDE = 2_654_435_761
CONFIRMED = 2

Call = Callable[[int], Awaitable[object]]
Measured = dict[tuple[str, int], Outcome]


def run(options: Options) -> list[Table]:
    """Every operation with one caller and with many; small tables, then large ones."""
    few, many = options.scaled((FEW_ROWS, MANY_ROWS), (1_000, FEW_ROWS))
    bounds = options.scaled(Bounds(50_000, 3.0), Bounds(200, 0.5))
    rounds = options.scaled(3, 1)
    cost, growth = [], []
    for kind in options.stores:
        called, by_grpc, said = [], [], []
        for _ in range(rounds):
            by_grpc.append(_through_rpc(options, kind, few, bounds, transport="grpc"))
            called.append(_through_rpc(options, kind, few, bounds))
            options.report(f"{TITLE}: {NAMES[kind]}, bare transactions")
            said.append(_bare(options, kind, few, bounds))
        small, old, bare = _middle(called), _middle(by_grpc), _middle(said)
        large = _through_rpc(options, kind, many, bounds, rounds)
        for key, outcome in small.items():
            name = f"{NAMES[kind]}: {key[0]}, {_callers(key[1])}"
            cost.append(
                [
                    name,
                    count(outcome.rate),
                    milliseconds(outcome.p50_ms),
                    milliseconds(outcome.p99_ms),
                    count(outcome.cpu_us),
                    count(old[key].rate),
                    milliseconds(old[key].p50_ms),
                    count(old[key].cpu_us),
                    ratio(outcome.rate, old[key].rate),
                    count(bare[key].rate),
                    milliseconds(bare[key].p50_ms),
                    ratio(outcome.rate, bare[key].rate),
                ]
            )
            growth.append(
                [
                    name,
                    milliseconds(outcome.p50_ms),
                    milliseconds(large[key].p50_ms),
                    ratio(large[key].p50_ms, outcome.p50_ms),
                    milliseconds(outcome.p99_ms),
                    milliseconds(large[key].p99_ms),
                    ratio(large[key].rate, outcome.rate),
                ]
            )
    return [
        Table(
            f"{TITLE}, beside bare transactions",
            [
                "",
                "a second",
                "p50 ms",
                "p99 ms",
                "server CPU µs",
                "by gRPC, a second",
                "by gRPC, p50 ms",
                "by gRPC, server CPU µs",
                "rate ÷ by gRPC",
                "bare, a second",
                "bare p50 ms",
                "rate ÷ bare",
            ],
            cost,
            [
                f"tables of {few:,} rows each; every commit is durable; one call of {PAIR} is a pair, two transactions",
                f"the middle of {rounds} round{'s' * (rounds > 1)}, in turns with those by gRPC and the bare ones",
                'by gRPC: the SDK with transport="grpc"; otherwise it calls in frames',
                "bare: the same statements, recorded from the ledgers and said again on one connection: no RPC, no"
                " thread, no thought; with many callers the transactions that group commit makes of them, and the"
                " latency is that of such a transaction",
            ],
        ),
        Table(
            f"{TITLE}, as the tables grow",
            [
                "",
                f"p50 ms at {few:,}",
                f"p50 ms at {many:,}",
                "p50 ratio",
                f"p99 ms at {few:,}",
                f"p99 ms at {many:,}",
                "rate ratio",
            ],
            growth,
            ["so many rows in each of runs, run heads, effects, values and the journal; keys fall anywhere among them"],
        ),
    ]


def _middle(measured: list[Measured]) -> Measured:
    """Of several rounds, for each operation the one in the middle by its rate."""
    return {
        key: sorted((each[key] for each in measured), key=lambda outcome: outcome.rate)[len(measured) // 2]
        for key in measured[0]
    }


def _callers(number: int) -> str:
    return "1 caller" if number == 1 else f"{number} callers"


# ── through the server ───────────────────────────────────────────────────────────────────────────


def _through_rpc(
    options: Options, kind: str, rows: int, bounds: Bounds, rounds: int = 1, transport: Transport = "auto"
) -> Measured:
    options.report(f"{TITLE}: filling {NAMES[kind]} with {rows:,} rows a table")
    store = options.lab.fresh_store(kind)
    fill(open_database(store), rows)
    options.report(f"{TITLE}: {NAMES[kind]} with {rows:,} rows a table")
    with TapeServer(store) as server:
        return options.lab.run(_call(server, rows, options.warm_up, bounds, rounds, transport))


async def _call(
    server: TapeServer, rows: int, warm_up: Bounds, bounds: Bounds, rounds: int, transport: Transport
) -> Measured:
    async with AsyncTapeClient(server.url, transport=transport) as client:

        async def effect(number: int) -> object:
            run = running(number, rows)
            begun = await client.begin_effect(
                run_id=run, decision_index=number, tool_name="transfer", request_json="{}"
            )
            return await client.complete_effect(
                run_id=run, idempotency_key=begun.idempotency_key, status=CONFIRMED, response_json="{}"
            )

        numbers = itertools.count(1)
        calls = (partial(begin_run, client, rows), effect, partial(write_value, client, rows))
        return _middle([await _measure(server, calls, numbers, warm_up, bounds) for _ in range(rounds)])


async def begin_run(client: AsyncTapeClient, rows: int, number: int) -> object:
    """Begin a new run of a filled session."""
    return await client.begin_run(**session_ids(spread(number, rows)), invocation_id=f"new-{number}")


async def write_value(client: AsyncTapeClient, rows: int, number: int) -> object:
    """Write a filled value."""
    key = value_key(spread(number, rows))
    return await client.write_value(namespace=NAMESPACE, key=key, value_json=f"{number}")


async def _measure(
    server: TapeServer, calls: tuple[Call, ...], numbers: Iterator[int], warm_up: Bounds, bounds: Bounds
) -> Measured:
    """Each operation with one caller and with many; no number is used twice."""
    measured: Measured = {}
    for name, call in zip(OPERATIONS, calls, strict=True):

        def numbered(_: int, call: Call = call) -> Awaitable[object]:
            return call(next(numbers))

        for callers in (1, CALLERS):
            await run_callers(numbered, callers, warm_up)
            measured[name, callers] = await server.measure(run_callers(numbered, callers, bounds))
    return measured


def spread(number: int, rows: int) -> int:
    """One of the filled rows, far from that of the number before."""
    return number * STRIDE % rows


def running(number: int, rows: int) -> str:
    """One of the filled runs that are still running."""
    return run_id(spread(number, rows) // 10 * 10, rows)


# ── bare ─────────────────────────────────────────────────────────────────────────────────────────


def _bare(options: Options, kind: str, rows: int, bounds: Bounds) -> Measured:
    measured: Measured = {}
    few = Bounds(min(bounds.entries, 5_000), bounds.seconds)
    for name, callers in itertools.product(OPERATIONS, (1, CALLERS)):
        recorded = open_database(options.lab.fresh_store(kind))
        fill(recorded, rows)
        recorders = record(recorded)
        done = options.lab.run(_operate(recorded, name, callers, rows, few))
        scripts = [script for recorder in recorders for script in recorder.transactions if script.last]
        # The same tables as those recorded on found them: numbers and keys of the recording fit.
        again = open_database(options.lab.fresh_store(kind))
        fill(again, rows)
        measured[name, callers] = replay(again, scripts, done.entries)
    return measured


async def _operate(database: Database, name: str, callers: int, rows: int, bounds: Bounds) -> Outcome:
    """The ledgers at work without a server around them."""

    async def call(number: int) -> None:
        for operation in _operations(name, number + 1, rows):
            await database.write(operation)

    async with database:
        return await run_callers(call, callers, bounds)


def _operations(name: str, number: int, rows: int) -> list[Callable[[Transaction], Any]]:
    if name == "BeginRun":
        ids = session_ids(spread(number, rows))
        wanted = Run(run_id="", **ids, invocation_id=f"new-{number}", status=RunStatus.RUNNING)
        return [lambda tx: runs.begin(tx, wanted, owner="", lease_ms=0)]
    if name == "WriteValue":
        key = value_key(spread(number, rows))
        return [lambda tx: values.write(tx, NAMESPACE, key, f"{number}")]
    run = running(number, rows)
    key = effects.key_of(run, number, "transfer", 0)
    pending = Effect(run, 0, number, "transfer", key, EffectStatus.PENDING, "{}")
    return [
        lambda tx: effects.begin(tx, pending),
        lambda tx: effects.complete(tx, run, key, CONFIRMED, response_json="{}"),
    ]
