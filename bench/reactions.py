"""Reactions: how fast entries are matched, how fast tasks drain, and how soon a handler has its event."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from statistics import median
from typing import Any

from bench.lab import TapeServer
from bench.load import event, percentile
from bench.options import NAMES, Options
from bench.peers.queues import Figures, bare_loop, library
from bench.peers.servers import NotInstalled
from bench.table import NOTHING, Table, count, milliseconds, ratio
from tape.client import AsyncTapeClient
from tape.engine.fanout.hub import Hub
from tape.engine.reactions import registry
from tape.engine.reactions.matcher import Matcher
from tape.engine.reactions.reaction import Reaction
from tape.engine.reactions.task_broker import TaskBroker
from tape.journal.journal import Journal
from tape.model.entry import Draft
from tape.model.payload import to_json
from tape.model.reaction_states import HandlerKind
from tape.proto import tape_pb2 as pb
from tape.store import Transaction, open_database

TITLE = "Reactions: matching, draining, latency"
PATTERN = "/tape/order/**"
COUNTS = (10, 1_000, 10_000)
WINDOW = 1_000
PEERS = {"pgqueuer": "bench.peers.queue_pgqueuer", "procrastinate": "bench.peers.queue_procrastinate"}
LIMITS: dict[str, dict[str, int]] = {
    "no limit": {"max_concurrency": 100_000},
    f"max_concurrency {WINDOW:,}": {"max_concurrency": WINDOW},
    "rate_limit_per_s 1,000,000": {"max_concurrency": 100_000, "rate_limit_per_s": 1_000_000},
    "debounce_ms 1, every subject once": {"max_concurrency": 100_000, "debounce_ms": 1},
}


def run(options: Options) -> list[Table]:
    """Matching with few and many reactions; tasks beside other queues; what limits cost."""
    return [_matching(options), *_queues(options), _limits(options)]


# ── matching ─────────────────────────────────────────────────────────────────────────────────────


def _matching(options: Options) -> Table:
    entries = options.scaled(20_000, 500)
    counts = options.scaled(COUNTS, (10, 100))
    rows = []
    for kind in options.stores:
        for number in counts:
            options.report(f"{TITLE}: {NAMES[kind]}, {number:,} reactions")
            rounds = [
                options.lab.run(_match(options.lab.fresh_store(kind), number, entries))
                for _ in range(options.scaled(2, 1))
            ]
            quiet, busy, share = (median(figures) for figures in zip(*rounds, strict=True))
            rows.append([f"{NAMES[kind]}: {number:,} reactions", count(quiet), count(busy), f"{share:.2f}"])
    notes = [
        "all reactions have one pattern and differ in the value that their predicate demands",
        "the matcher walks through a journal that is there already; tasks and positions are committed durably",
        "predicates: how many were evaluated for an entry, on average, while one reaction fires on every entry",
    ]
    columns = ["", "entries/s, none fires", "entries/s, each a task", "predicates an entry"]
    return Table("Matching: entries against many reactions", columns, rows, notes)


async def _match(store: str, reactions: int, entries: int) -> tuple[float, float, float]:
    """Entries per second without a match, with a match, and predicates evaluated per entry."""

    def register(tx: Transaction) -> None:
        for number in range(reactions):
            predicate = f'payload.customer == "customer-{number:06d}" && payload.amount.value >= 0'
            registry.register(tx, Reaction(f"r{number}", "", PATTERN, predicate, HandlerKind.TASK))

    async with open_database(store) as database:
        journal = Journal(database)
        hub = Hub(database)
        await hub.start()
        await database.write(register)
        matcher = Matcher(hub, TaskBroker(database))
        await matcher.refresh_index()
        rates = []
        head = 0
        for is_wanted in (False, True):
            for start in range(0, entries, 512):
                numbers = range(start, min(start + 512, entries))
                await journal.append([_order(number, is_wanted, reactions) for number in numbers])
            head += entries
            before = database.metrics.evaluated._value.get()
            began = time.perf_counter()
            await matcher.start()
            while not matcher.is_settled_at(head):
                await asyncio.sleep(0.002)
            rates.append(entries / (time.perf_counter() - began))
            await matcher.close()
        evaluated = (database.metrics.evaluated._value.get() - before) / entries
        await hub.close()
    return rates[0], rates[1], evaluated


def _order(number: int, is_wanted: bool, reactions: int) -> Draft:
    """An entry of the load: of a customer that a reaction matches, or of an unknown one."""
    subject, run_id, payload = event(number)
    customer = f"customer-{number % reactions:06d}" if is_wanted else "unknown"
    return Draft(subject=subject, run_id=run_id, payload_json=to_json({**payload, "customer": customer}))


# ── draining ─────────────────────────────────────────────────────────────────────────────────────


def _queues(options: Options) -> list[Table]:
    jobs, probes = options.scaled((5_000, 200), (300, 10))
    rounds = options.scaled(3, 1)
    measured: dict[str, list[Figures]] = {}
    missing: dict[str, str] = {}
    for number in range(1, rounds + 1):
        for kind in options.stores:
            options.report(f"{TITLE}: queues, round {number}, {NAMES[kind]}")
            figures = _tape(options, kind, jobs, probes, LIMITS["no limit"])
            measured.setdefault(f"Tape on {NAMES[kind]}", []).append(figures)
        if "postgres" not in options.stores:
            continue
        for name, module in PEERS.items():
            if name in missing:
                continue
            options.report(f"{TITLE}: queues, round {number}, {name}")
            try:
                figures = library(module, options.lab.fresh_store("postgres"), jobs, probes)
                measured.setdefault(name, []).append(figures)
            except NotInstalled as error:
                missing[name] = str(error)
        measured.setdefault(BARE, []).append(bare_loop(options.lab.fresh_store("postgres"), jobs))
    middle = {
        name: {key: median(each[key] for each in figures) for key in figures[0]} for name, figures in measured.items()
    }
    return [_drain_table(middle, missing, jobs), _latency_table(middle, missing, probes)]


BARE = "bare SKIP LOCKED loop (psycopg, 100 at once)"


def _drain_table(middle: dict[str, Figures], missing: dict[str, str], jobs: int) -> Table:
    ours = middle.get("Tape on Postgres", {}).get("drain")
    rows = [
        [
            name,
            count(figures["enqueue"]),
            count(figures["drain"]),
            count(figures["whole"]) if "whole" in figures else NOTHING,
            NOTHING if name.startswith("Tape") else ratio(ours, figures["drain"]),
        ]
        for name, figures in middle.items()
    ]
    rows += [[name, why, NOTHING, NOTHING, NOTHING] for name, why in missing.items()]
    notes = [
        f"{jobs:,} jobs with a payload of about 200 bytes, a handler that does nothing, one worker process",
        "enqueue: for Tape, entries that are on the journal become tasks by matching; for the others, a bulk insert",
        "drain: claim, run, complete; whole: from entries on the journal to completed tasks, matching included",
        "the aims: 1.5 times pgqueuer, a third of the bare loop",
    ]
    return Table(
        "Tasks: draining a backlog", ["", "enqueue/s", "drain/s", "whole/s", "Tape on Postgres ÷ it"], rows, notes
    )


def _latency_table(middle: dict[str, Figures], missing: dict[str, str], probes: int) -> Table:
    rows = [
        [name, milliseconds(figures["p50_ms"]), milliseconds(figures["p99_ms"])]
        for name, figures in middle.items()
        if name != BARE
    ]
    rows += [[name, why, NOTHING] for name, why in missing.items()]
    notes = [
        f"{probes} events, one in flight: from the call that appends or enqueues to the handler, everything durable",
        "for Tape that is an append, its match, its claim, and two ways through gRPC; the others are in one process",
        "the aims: p50 under 3 ms, p99 under 10 ms, on a quiet machine",
    ]
    return Table("Tasks: from event to handler", ["", "p50 ms", "p99 ms"], rows, notes)


def _limits(options: Options) -> Table:
    jobs = options.scaled(5_000, 300)
    rounds = options.scaled(3, 1)
    rows = []
    for kind in options.stores:
        rates: dict[str, list[float]] = {}
        for number in range(1, rounds + 1):
            for name, fields in LIMITS.items():
                options.report(f"{TITLE}: limits, round {number}, {NAMES[kind]}, {name}")
                rates.setdefault(name, []).append(_tape(options, kind, jobs, 0, fields)["drain"])
        free = median(rates["no limit"])
        for name, each in rates.items():
            lost = f"{(1 - median(each) / free) * 100:+.0f} %" if name != "no limit" else NOTHING
            rows.append([f"{NAMES[kind]}: {name}", count(median(each)), lost])
    notes = [f"draining {jobs:,} tasks, as above; the limits are set so high that they never hold anything up"]
    return Table("Tasks: what a limit costs", ["", "drain/s", "lost"], rows, notes)


def _tape(options: Options, kind: str, jobs: int, probes: int, fields: dict[str, int]) -> Figures:
    store = options.lab.fresh_store(kind)
    with TapeServer(store) as server:
        return options.lab.run(_measure(server.url, jobs, probes, fields))


async def _measure(url: str, jobs: int, probes: int, fields: dict[str, int]) -> Figures:
    async with AsyncTapeClient(url) as client:
        for start in range(0, jobs, 1_000):
            await client.append_many([_unlike(number) for number in range(start, min(start + 1_000, jobs))])
        began = time.perf_counter()
        await _register(client, "drained", backfill=True, **fields)
        await _matched(client, "drained", jobs)
        enqueue = jobs / (time.perf_counter() - began)
        drain = await _drain(client, "drained", jobs)
        figures = {"enqueue": enqueue, "drain": drain}
        if probes:
            whole = asyncio.create_task(_drain(client, "whole", jobs, register={"backfill": True, **fields}))
            figures["whole"] = await whole
            await client.deregister_reaction("drained")
            await client.deregister_reaction("whole")
            waits = sorted(await probe_handler(client, probes, **fields))
            figures |= {"p50_ms": percentile(waits, 0.5), "p99_ms": percentile(waits, 0.99)}
        return figures


def _unlike(number: int) -> Draft:
    """An entry with a subject of its own, so that a debounce coalesces nothing."""
    subject, run_id, payload = event(number)
    return Draft(subject=f"{subject}/{number}", run_id=run_id, payload_json=to_json(payload))


async def _register(client: AsyncTapeClient, reaction_id: str, **fields: Any) -> None:
    await client.register_reaction(reaction_id=reaction_id, subject_pattern=PATTERN, handler_kind=2, **fields)


async def _matched(client: AsyncTapeClient, reaction_id: str, tasks: int) -> None:
    while (await client.get_reaction_stats(reaction_id)).stats[0].matched < tasks:
        await asyncio.sleep(0.01)


async def _drain(client: AsyncTapeClient, reaction_id: str, jobs: int, register: dict[str, Any] | None = None) -> float:
    """Tasks a second from the first request until the last is known to be done."""
    reports: asyncio.Queue[pb.DispatchRequest | None] = asyncio.Queue()
    began = time.perf_counter()
    if register is not None:
        await _register(client, reaction_id, **register)

    async def requests() -> AsyncIterator[pb.DispatchRequest]:
        yield pb.DispatchRequest(owner="bench", reaction_ids=[reaction_id], window=WINDOW)
        while (report := await reports.get()) is not None:
            yield report

    done = 0
    async for reply in client.dispatch_tasks(requests()):
        done += len(reply.settled)
        if reply.tasks:
            reports.put_nowait(pb.DispatchRequest(completed=[task.task_id for task in reply.tasks]))
        if done >= jobs:
            break
    return jobs / (time.perf_counter() - began)


async def probe_handler(client: AsyncTapeClient, probes: int, **fields: int) -> list[float]:
    """Milliseconds from the call that appends to the handler that is given the task, of a reaction `probed`."""
    await _register(client, "probed", **fields)
    reports: asyncio.Queue[pb.DispatchRequest] = asyncio.Queue()

    async def requests() -> AsyncIterator[pb.DispatchRequest]:
        yield pb.DispatchRequest(owner="bench", reaction_ids=["probed"], window=10)
        while True:
            yield await reports.get()

    stream = client.dispatch_tasks(requests())
    waits = []
    for number in range(probes + WARM_UP):
        subject, run_id, payload = event(number)
        asked = time.perf_counter()
        sending = asyncio.create_task(client.append(subject, payload, run_id=run_id))
        while not (reply := await anext(stream)).tasks:
            pass
        waits.append((time.perf_counter() - asked) * 1_000)
        reports.put_nowait(pb.DispatchRequest(completed=[task.task_id for task in reply.tasks]))
        await sending
        await asyncio.sleep(0.005)
    await stream.aclose()  # type: ignore[attr-defined]
    return waits[WARM_UP:]


WARM_UP = 20
