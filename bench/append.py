"""How many entries become durable in a second when many callers append at once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from statistics import median_low

from bench.lab import TapeServer
from bench.load import CALLERS, Bounds, Outcome, event, run_callers
from bench.options import NAMES, Options
from bench.peers import measure
from bench.peers.servers import NotInstalled
from bench.raw import rows_of, write_in_transactions
from bench.table import NOTHING, Table, count, milliseconds, ratio
from tape.client import AsyncTapeClient
from tape.client.upgrade import Transport

TITLE = f"Append: durable entries from {CALLERS} concurrent callers"

DRIVERS = {"sqlite": "apsw, executemany", "postgres": "psycopg, COPY"}
PEERS = {
    "Redis, appendfsync always (redis-py)": measure.redis_through_its_client,
    "Redis, appendfsync always (redis-benchmark, C)": measure.redis_through_its_benchmark,
    "NATS JetStream, sync_interval always (nats-py)": measure.nats_through_its_client,
}
# How many times as fast Tape should be.
AIMS = {"Redis, appendfsync always (redis-py)": 1.5, "NATS JetStream, sync_interval always (nats-py)": 10.0}
RAW_AIM = 0.5


@dataclass(frozen=True)
class Answer:
    """One measurement of one contestant."""

    outcome: Outcome
    entries_per_commit: float | None = None


def run(options: Options) -> list[Table]:
    """Tape, the limit of its databases, and peers, in turns; of each the round with the median rate."""
    bounds = options.scaled(Bounds(200_000, 5.0), Bounds(2_000, 0.3))
    answers: dict[str, list[Answer]] = {}
    missing: dict[str, str] = {}
    for number in range(1, options.scaled(3, 1) + 1):
        for kind in options.stores:
            options.report(f"{TITLE}: round {number}, {NAMES[kind]}")
            by_grpc, ours, raw = measure_store(options, kind, bounds)
            answers.setdefault(_tape(kind), []).append(ours)
            answers.setdefault(_by_grpc(kind), []).append(by_grpc)
            answers.setdefault(_raw(kind), []).append(raw)
        for name, measure_peer in PEERS.items():
            if name not in missing:
                options.report(f"{TITLE}: round {number}, {name}")
                try:
                    outcome = measure_peer(options.lab.fresh_folder(), bounds, options.warm_up.seconds)
                    answers.setdefault(name, []).append(Answer(outcome))
                except NotInstalled as error:
                    missing[name] = str(error)
    best = {name: _median(rounds) for name, rounds in answers.items()}
    notes = [
        "p50 and p99 are what a caller waits for one entry; for the drivers, what one transaction takes",
        "the drivers write the rows that Tape wrote (chain, indexes, heads) in transactions of the size it reached",
        "Tape, redis-py and nats-py: one process with 64 asyncio callers on uvloop, the server in another",
        'by gRPC: the SDK with transport="grpc", on the same server before; otherwise it calls in frames',
    ]
    return [Table(TITLE, _columns(options), _rows(options, best, missing), notes)]


def measure_store(options: Options, kind: str, bounds: Bounds) -> tuple[Answer, Answer, Answer]:
    """Tape on a fresh store, by gRPC and in frames, then the rows of the latter through the driver."""
    store = options.lab.fresh_store(kind)
    with TapeServer(store) as server:
        by_grpc, _ = options.lab.run(_append(server, options.warm_up, bounds, "grpc"))
        ours, first = options.lab.run(_append(server, options.warm_up, bounds, "auto"))
    rows = rows_of(store, after=first)
    size = max(round(ours.entries_per_commit or 1), 1)
    raw = write_in_transactions(options.lab.fresh_store(kind), rows, size)
    return by_grpc, ours, Answer(raw, size)


async def _append(server: TapeServer, warm_up: Bounds, bounds: Bounds, transport: Transport) -> tuple[Answer, int]:
    """The answer, and the global_seq after which its entries begin."""
    async with AsyncTapeClient(server.url, transport=transport) as client:

        async def append(number: int) -> int:
            subject, run_id, payload = event(number)
            return await client.append(subject, payload, run_id=run_id)

        await run_callers(append, CALLERS, warm_up)
        first = (await client.head()).global_seq
        before = server.counters()
        outcome = await server.measure(run_callers(append, CALLERS, bounds))
        after = server.counters()

    def grown(name: str) -> float:
        return after[name] - before[name]

    return Answer(outcome, grown("tape_journal_entries_total") / grown("tape_commits_total")), first


def _columns(options: Options) -> list[str]:
    ratios = [f"Tape on {NAMES[kind]} ÷ it" for kind in options.stores]
    return ["", "entries/s", "p50 ms", "p99 ms", "server CPU µs", "entries per commit", *ratios, "aim"]


def _rows(options: Options, best: dict[str, Answer], missing: dict[str, str]) -> list[list[str]]:
    ours = {kind: best[_tape(kind)].outcome.rate for kind in options.stores}

    def row(name: str, against: Collection[str], aim: float | None) -> list[str]:
        if name in missing:
            return [name, missing[name], *[NOTHING] * (5 + len(ours))]
        answer = best[name]
        rate = answer.outcome.rate
        commits = NOTHING if answer.entries_per_commit is None else f"{answer.entries_per_commit:.1f}"
        return [
            name,
            count(rate),
            milliseconds(answer.outcome.p50_ms),
            milliseconds(answer.outcome.p99_ms),
            count(answer.outcome.cpu_us) if answer.outcome.cpu_us else NOTHING,
            commits,
            *(ratio(ours[kind] if kind in against else None, rate) for kind in ours),
            NOTHING if aim is None else f"≥ {aim:g}×",
        ]

    rows = [row(_tape(kind), (), None) for kind in options.stores]
    rows += [row(_by_grpc(kind), [kind], None) for kind in options.stores]
    rows += [row(_raw(kind), [kind], RAW_AIM) for kind in options.stores]
    return rows + [row(name, options.stores, AIMS.get(name)) for name in PEERS]


def _tape(kind: str) -> str:
    return f"Tape on {NAMES[kind]}"


def _by_grpc(kind: str) -> str:
    return f"Tape on {NAMES[kind]}, by gRPC"


def _raw(kind: str) -> str:
    return f"{NAMES[kind]} itself ({DRIVERS[kind]})"


def _median(rounds: list[Answer]) -> Answer:
    middle = median_low([answer.outcome.rate for answer in rounds])
    return next(answer for answer in rounds if answer.outcome.rate == middle)
