"""`backtest`: how often a reaction would have fired over history, per hour and tenant.

Executors run the servers' matcher. With a debounce, one task simulates all matches of a subject; with a rate limit,
one task simulates all matches. The clock of the simulation is the time of the entries. Nothing is written.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterator
from functools import reduce
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from tape.archive.location import resolve_url
from tape.engine.reactions.reaction import Reaction, check_reaction
from tape.engine.reactions.simulation import QueueMonitor, QueueStatistics, SimulatedTask, Simulation
from tape.model.reaction_states import HandlerKind
from tape.pipeline.options import resolve_store
from tape.pipeline.reaction_search import LEAN_COLUMNS, search

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SAMPLES = 5
HOUR_MS = 3_600_000
_NUMBERS = ("hour_ms", "fired", "debounced", "seen", "errors", "sample", *QueueStatistics.__struct_fields__)
_TEXTS = ("tenant", "error")
_SCHEMA = ", ".join([*(f"{name} long" for name in _NUMBERS), *(f"{name} string" for name in _TEXTS)])


class Hour(msgspec.Struct, frozen=True):
    """The counts of one hour (UTC) and tenant."""

    hour: str
    tenant: str
    fired: int
    debounced: int = 0


class Sample(msgspec.Struct, frozen=True):
    """An entry on which the reaction would have fired."""

    global_seq: int
    subject: str
    payload_json: str


class Backtest(msgspec.Struct, frozen=True):
    """The result of a backtest: entries read, how often the reaction fired, by hour and tenant, and samples.

    `debounced` matches were merged into a later match of their subject. `queue` describes the waiting caused by a rate
    limit. On `errors` entries the predicate raised an error, which is not a match.
    """

    entries: int
    fired: int
    debounced: int
    errors: int
    last_error: str
    queue: QueueStatistics
    hours: list[Hour]
    samples: list[Sample]

    @property
    def tenants(self) -> dict[str, int]:
        """How often the reaction would have fired, by tenant."""
        found: dict[str, int] = defaultdict(int)
        for hour in self.hours:
            found[hour.tenant] += hour.fired
        return dict(sorted(found.items()))


def unregistered_reaction(subject: str, where: str = "", debounce_ms: int = 0, rate_limit_per_s: int = 0) -> Reaction:
    """Return a reaction that is not registered, for a backtest."""
    wanted = Reaction("backtest", "", subject, where, HandlerKind.TASK)
    limits = {"debounce_ms": debounce_ms, "rate_limit_per_s": rate_limit_per_s}
    return check_reaction(msgspec.structs.replace(wanted, **limits))


def backtest(
    spark: SparkSession,
    store: str,
    reaction: Reaction,
    *,
    since: str = "earliest",
    until: str = "latest",
    lake: str = "",
    samples: int = SAMPLES,
) -> Backtest:
    """Simulate a reaction on a range of the journal and its archive, without creating tasks."""
    store, lake = resolve_store(store), resolve_url(lake) if lake else ""
    found = search(spark, store, reaction, since=since, until=until, lake=lake, columns=LEAN_COLUMNS)
    debounce_ms, rate = reaction.debounce_ms, reaction.rate_limit_per_s
    if rate:
        found = found.repartition(1)
    elif debounce_ms:
        found = found.repartition("subject")
    if rate or debounce_ms:
        found = found.sortWithinPartitions("global_seq")

    def simulate(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tally = _Simulation(debounce_ms, rate, samples)
        for batch in batches:
            tally.add(batch)
        rows = tally.rows()
        columns = {name: [row.get(name, 0) for row in rows] for name in _NUMBERS}
        columns |= {name: [row.get(name, "") for row in rows] for name in _TEXTS}
        arrays = [pa.array(values, pa.string() if name in _TEXTS else pa.int64()) for name, values in columns.items()]
        yield pa.RecordBatch.from_arrays(arrays, names=list(columns))

    rows = [row.asDict() for row in found.mapInArrow(simulate, _SCHEMA).collect()]
    return _outcome(rows, _samples(spark, store, lake, rows, samples))


class _Simulation:
    """Simulates the matches of one task and counts."""

    def __init__(self, debounce_ms: int, rate: int, samples: int) -> None:
        # A match is its hour, its tenant and its global_seq.
        self._simulation: Simulation[tuple[int, str, int]] = Simulation(debounce_ms, rate)
        self._counting = QueueMonitor()
        self._hours: dict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0])
        self._wanted = samples
        self._samples: list[int] = []
        self._counts: dict[str, Any] = {"seen": 0, "errors": 0, "error": ""}
        self._is_plain = not debounce_ms and not rate

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows of a search, in order."""
        names = ("global_seq", "ts_ms", "tenant", "subject", "seen", "errors", "error")
        for number, ts_ms, tenant, subject, seen, errors, error in zip(
            *(batch.column(name).to_pylist() for name in names), strict=True
        ):
            if not number:
                self._counts["seen"] += seen
                self._counts["errors"] += errors
                self._counts["error"] = error or self._counts["error"]
                continue
            hour = (ts_ms - ts_ms % HOUR_MS, tenant)
            if self._is_plain:
                self._fire(hour, number)
                continue
            for one in self._simulation.add((*hour, number), subject, ts_ms):
                self._count_fired(one)
            # A match counts as debounced until it fires.
            self._hours[hour][1] += 1

    def _fire(self, hour: tuple[int, str], number: int) -> None:
        self._hours[hour][0] += 1
        if len(self._samples) < self._wanted:
            self._samples.append(number)

    def _count_fired(self, one: SimulatedTask[tuple[int, str, int]]) -> None:
        hour, tenant, number = one.newest
        self._fire((hour, tenant), number)
        self._hours[hour, tenant][1] -= 1
        self._counting.observe(one.due_ms, one.at_ms)

    def rows(self) -> list[dict[str, Any]]:
        """Return the counts as rows."""
        for one in self._simulation.release_all():
            self._count_fired(one)
        hours = [
            {"hour_ms": hour, "tenant": tenant, "fired": fired, "debounced": debounced}
            for (hour, tenant), (fired, debounced) in self._hours.items()
        ]
        queue = msgspec.structs.asdict(self._counting.queue)
        return [self._counts | queue, *hours, *({"sample": number} for number in self._samples)]


def _samples(spark: SparkSession, store: str, lake: str, rows: list[dict[str, Any]], count: int) -> list[Sample]:
    """Read the first entries that would have fired."""
    numbers = sorted(row["sample"] for row in rows if row["sample"])[:count]
    if not numbers:
        return []

    def one(number: int) -> DataFrame:
        reader = spark.read.format("tape").schema("global_seq long, subject string, payload_json string")
        reader = reader.option("store", store).option("startingOffsets", number - 1).option("endingOffsets", number)
        return (reader.option("lake", lake) if lake else reader).load()

    frame = reduce(lambda a, b: a.union(b), map(one, numbers))
    return sorted((Sample(**row.asDict()) for row in frame.collect()), key=lambda sample: sample.global_seq)


def _outcome(rows: list[dict[str, Any]], samples: list[Sample]) -> Backtest:
    hours: dict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        if row["fired"] or row["debounced"]:
            total = hours[row["hour_ms"], row["tenant"]]
            total[0] += row["fired"]
            total[1] += row["debounced"]
    listed = [Hour(_iso(hour), tenant, *total) for (hour, tenant), total in sorted(hours.items())]
    longest = max(rows, key=lambda row: row["waited"], default={})
    return Backtest(
        entries=sum(row["seen"] for row in rows),
        fired=sum(hour.fired for hour in listed),
        debounced=sum(hour.debounced for hour in listed),
        errors=sum(row["errors"] for row in rows),
        last_error=next((row["error"] for row in rows if row["error"]), ""),
        queue=QueueStatistics(**{name: longest.get(name, 0) for name in QueueStatistics.__struct_fields__}),
        hours=listed,
        samples=samples,
    )


def _iso(hour_ms: int) -> str:
    return dt.datetime.fromtimestamp(hour_ms / 1000, dt.UTC).strftime("%Y-%m-%dT%H:00Z")


if __name__ == "__main__":
    from tape.pipeline.jobs.command import main

    main("backtest")
