"""What `growth` measures on one store: the plots, their lines, and how a figure of each is taken."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median

from bench.growth_store import RARE, FilledStore
from bench.lab import TapeServer, cpu_seconds, draft
from bench.ledgers import begin_run, write_value
from bench.load import CALLERS, Bounds, Outcome, event, percentile, run_callers
from bench.options import Options
from bench.reactions import probe_handler
from bench.replay import read_batches
from bench.stream import replay_events
from tape.client import AsyncTapeClient
from tape.journal.journal import AppendRequest, append_requests
from tape.model.entry import checked
from tape.store import Transaction, open_database

REPLAYED = 100_000
# A load ends by its time, never by its entries.
MANY = 10_000_000


@dataclass(frozen=True)
class Plot:
    """Lines of one unit in one picture."""

    name: str
    title: str
    unit: str
    lines: tuple[str, ...]


CALLS = Plot("calls", f"Calls from {CALLERS} callers", "calls/s", ("append", "BeginRun", "WriteValue"))
APPEND_MS = Plot(
    "append-latency",
    "Latency of an append",
    "ms",
    (f"{CALLERS} callers, p99", f"{CALLERS} callers, p50", "1 caller, p50"),
)
LEDGER_MS = Plot(
    "ledger-latency",
    f"Latency of ledger calls from {CALLERS} callers",
    "ms",
    ("BeginRun, p99", "BeginRun, p50", "WriteValue, p99", "WriteValue, p50"),
)
CPU = Plot(
    "cpu",
    f"CPU of a call, {CALLERS} callers",
    "µs",
    ("append, server", "BeginRun, server", "WriteValue, server", "append, commit"),
)
REPLAY = Plot("replay", "Replay from the middle of the journal", "entries/s", ("Follow", "SSE"))
WAITS = Plot("waits", "Lookup and reaction, p50", "ms", (f"{RARE} rare entries", "event to handler"))
START = Plot("start", "Start of a server, until it is ready", "s", ("elapsed", "CPU"))
BY_SIZE = (CALLS, APPEND_MS, LEDGER_MS, CPU, REPLAY, WAITS, START)

CALLERS_CALLS = Plot("callers-calls", "Calls by the number of callers", "calls/s", ("append", "BeginRun"))
CALLERS_MS = Plot("callers-latency", "Latency by the number of callers, p50", "ms", ("append", "BeginRun"))
CALLERS_CPU = Plot(
    "callers-cpu", "CPU of a call by the number of callers", "µs", ("append, server", "BeginRun, server")
)
BY_CALLERS = (CALLERS_CALLS, CALLERS_MS, CALLERS_CPU)

# A figure of each line of some plots.
Figures = dict[tuple[Plot, str], float]
Call = Callable[[int], Awaitable[object]]


@dataclass(frozen=True)
class Load:
    """Calls of one client to a server. No number is used twice, not even on another server of the same store."""

    options: Options
    server: TapeServer
    client: AsyncTapeClient
    store: FilledStore
    numbers: Iterator[int]
    seconds: float

    async def measure(self, call: Call, callers: int) -> tuple[Outcome, float]:
        """The outcome, and the microseconds of CPU that the server has used for a call."""

        def numbered(_: int) -> Awaitable[object]:
            return call(next(self.numbers))

        await run_callers(numbered, callers, Bounds(MANY, self.options.scaled(0.5, 0.05)))
        before = cpu_seconds(self.server.pid)
        outcome = await run_callers(numbered, callers, Bounds(MANY, self.options.scaled(self.seconds, 0.2)))
        return outcome, (cpu_seconds(self.server.pid) - before) / outcome.entries * 1e6

    async def append(self, callers: int) -> tuple[Outcome, float]:
        """Append the entries of the load."""

        async def append(number: int) -> int:
            subject, run_id, payload = event(number)
            return await self.client.append(subject, payload, run_id=run_id)

        return await self.measure(append, callers)

    async def begin_run(self, callers: int) -> tuple[Outcome, float]:
        """Begin runs of filled sessions."""
        return await self.measure(partial(begin_run, self.client, self.store.runs), callers)

    async def write_value(self, callers: int) -> tuple[Outcome, float]:
        """Write filled values."""
        return await self.measure(partial(write_value, self.client, self.store.runs), callers)


def measure_size(options: Options, store: FilledStore, numbers: Iterator[int]) -> Figures:
    """A figure of each line of `BY_SIZE`: what reads before what writes, because a load makes a small store larger."""
    with store.opened(options.lab) as url:
        began = time.perf_counter()
        with _serve(url) as server:
            figures = {(START, "elapsed"): time.perf_counter() - began, (START, "CPU"): cpu_seconds(server.pid)}
            replayed, middle = min(REPLAYED, store.entries // 2 - RARE), store.entries // 2
            figures[REPLAY, "SSE"] = replay_events(options.lab, server, replayed, middle)
            figures |= options.lab.run(_read(options, server, store, replayed, middle))
            figures |= options.lab.run(_write(options, server, store, numbers))
        figures[CPU, "append, commit"] = _commit_cpu(url, options.scaled(300, 5))
    return figures


def measure_callers(
    options: Options, store: FilledStore, callers: tuple[int, ...], numbers: Iterator[int]
) -> dict[int, Figures]:
    """A figure of each line of `BY_CALLERS`, by the number of callers."""
    with store.opened(options.lab) as url, _serve(url) as server:
        return options.lab.run(_write_by_callers(options, server, store, callers, numbers))


def _serve(url: str) -> TapeServer:
    # The witness of a copy on PostgreSQL begins with this server, which would be a warning.
    return TapeServer(url, "--log-level", "error")


async def _read(options: Options, server: TapeServer, store: FilledStore, replayed: int, middle: int) -> Figures:
    async with AsyncTapeClient(server.url) as client:
        await client.head()
        began = time.perf_counter()
        got = await read_batches(client, replayed, middle)
        figures = {(REPLAY, "Follow"): got / (time.perf_counter() - began)}
        lookups = [await _look_up(client, store.rare_subject) for _ in range(options.scaled(20, 3))]
        figures[WAITS, f"{RARE} rare entries"] = median(lookups) * 1e3
        waits = sorted(await probe_handler(client, options.scaled(100, 5)))
        await client.deregister_reaction("probed")
        figures[WAITS, "event to handler"] = percentile(waits, 0.5)
    return figures


async def _look_up(client: AsyncTapeClient, subject: str) -> float:
    """Seconds until all entries of a rare subject have arrived."""
    began = time.perf_counter()
    got = 0
    async for _ in client.follow(subject):
        got += 1
        if got == RARE:
            break
    return time.perf_counter() - began


async def _write(options: Options, server: TapeServer, store: FilledStore, numbers: Iterator[int]) -> Figures:
    async with AsyncTapeClient(server.url) as client:
        load = Load(options, server, client, store, numbers, seconds=3.0)
        alone, _ = await load.append(1)
        figures = {(APPEND_MS, "1 caller, p50"): alone.p50_ms}
        for name, measure in (("WriteValue", load.write_value), ("BeginRun", load.begin_run), ("append", load.append)):
            outcome, cpu_us = await measure(CALLERS)
            figures[CALLS, name] = outcome.rate
            figures[CPU, f"{name}, server"] = cpu_us
            plot, label = (APPEND_MS, f"{CALLERS} callers") if name == "append" else (LEDGER_MS, name)
            figures[plot, f"{label}, p50"] = outcome.p50_ms
            figures[plot, f"{label}, p99"] = outcome.p99_ms
    return figures


async def _write_by_callers(
    options: Options, server: TapeServer, store: FilledStore, callers: tuple[int, ...], numbers: Iterator[int]
) -> dict[int, Figures]:
    measured = {}
    async with AsyncTapeClient(server.url) as client:
        load = Load(options, server, client, store, numbers, seconds=1.5)
        for some in callers:
            figures: Figures = {}
            for name, measure in (("append", load.append), ("BeginRun", load.begin_run)):
                outcome, cpu_us = await measure(some)
                figures[CALLERS_CALLS, name] = outcome.rate
                figures[CALLERS_MS, name] = outcome.p50_ms
                figures[CALLERS_CPU, f"{name}, server"] = cpu_us
            measured[some] = figures
    return measured


def _commit_cpu(url: str, commits: int) -> float:
    """Microseconds of CPU an entry in transactions as the writer makes them of one message of many callers."""
    connection = open_database(url).connect()
    backend = connection.query("SELECT pg_backend_pid()")[0][0] if connection.dialect == "postgres" else None
    drafts = [checked(draft(number)) for number in range(CALLERS)]

    def commit() -> None:
        connection.begin()
        tx = Transaction(connection)
        append_requests(tx, [AppendRequest(drafts, secrets.token_hex(16), shares_runs=True)])
        connection.commit(tx.flush)

    try:
        for _ in range(commits // 10):
            commit()
        before = _cpu(backend)
        for _ in range(commits):
            commit()
        return (_cpu(backend) - before) / commits / CALLERS * 1e6
    finally:
        connection.close()


def _cpu(backend: int | None) -> float:
    """CPU seconds of this thread and of the database's process, if that is another one."""
    return time.thread_time() + (cpu_seconds(backend) if backend is not None else 0.0)
