"""How jobs on Spark grow: with cores, with the length of the journal, and how far they fall behind a steady load."""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.drawing import Line, draw_lines
from bench.growing import GrowingJournal
from bench.options import Options
from bench.table import Table, count, ratio

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TITLE = "Pipeline: more cores, longer journals, a steady load"
ENTRIES, QUICK_ENTRIES = 400_000, 4_000
SIZES, QUICK_SIZES = (1_000_000, 2_000_000, 4_000_000, 8_000_000), (2_000, 4_000)
PER_S, QUICK_PER_S = 5_000, 500
SECONDS, QUICK_SECONDS = 120, 3
PLOT = Path("docs/growth.svg")
# A predicate that no database can decide and that costs some microseconds.
WHERE = (
    'payload.lines.exists(line, line.sku.endsWith("7") && line.quantity > 2)'
    ' && payload.customer.matches("customer-0+[1-8]") && payload.amount.value % 7 != 3'
)


def run(options: Options) -> list[Table]:
    """On SQLite; each table in one session of Spark, or one for each number of cores."""
    return [_cores(options), _growth(options), _lag(options)]


def _cores(options: Options) -> Table:
    """The same CPU-bound backtest on one core and on two."""
    from tape.pipeline.jobs.backtest import backtest, unregistered_reaction

    entries = options.scaled(ENTRIES, QUICK_ENTRIES)
    store = GrowingJournal(options.lab.fresh_store("sqlite")).grow_to(entries)
    seconds = {}
    for cores in (1, 2):
        options.report(f"{TITLE}: a backtest on {cores} cores")
        with _session(cores) as spark:
            work = partial(backtest, spark, store, unregistered_reaction("/tape/**", WHERE))
            work()  # the first one starts Python
            seconds[cores] = _timed(work)
    rows = [
        [f"{cores} cores" if cores > 1 else "1 core", count(entries / took), ratio(seconds[1], took)]
        for cores, took in seconds.items()
    ]
    notes = [f"{entries:,} entries; {_machine()}"]
    return Table("A CPU-bound backtest on one and two cores", ["", "entries/s", "beside 1 core"], rows, notes)


def _growth(options: Options) -> Table:
    """Reading, backtest and archive as the journal grows."""
    sizes = options.scaled(SIZES, QUICK_SIZES)
    journal = GrowingJournal(options.lab.fresh_store("sqlite"))
    rows, figures = [], []
    with _session(2) as spark:
        for work in _jobs(spark, journal.grow_to(sizes[0] // 10)).values():
            work()  # the first ones start Python
        for size in sizes:
            options.report(f"{TITLE}: {size:,} entries")
            store = journal.grow_to(size)
            took = {name: _timed(work) for name, work in _jobs(spark, store).items()}
            figures.append(took)
            rows.append([f"{size:,}", *(f"{one:.1f} s ({count(size / one)}/s)" for one in took.values())])
    names = list(figures[0])
    lines = [Line(name, [(size, took[name]) for size, took in zip(sizes, figures, strict=True)]) for name in names]
    if not options.is_quick:
        PLOT.write_text(draw_lines(lines, "entries of the journal", "seconds"))
    notes = [f"Spark on 2 cores, SQLite, each once; {_machine()}"]
    return Table("As the journal grows", ["entries", *names], rows, notes)


def _jobs(spark: SparkSession, store: str) -> dict[str, Callable[[], object]]:
    from tape.pipeline.job_context import JobContext
    from tape.pipeline.jobs.archive import archive
    from tape.pipeline.jobs.backtest import backtest, unregistered_reaction

    def read() -> None:
        frame = spark.read.format("tape").option("store", store).option("minPartitions", 2).load()
        frame.write.format("noop").mode("overwrite").save()

    def archived() -> None:
        with tempfile.TemporaryDirectory(prefix="tape-bench-lake-") as lake:
            archive(spark, store, lake, JobContext("archive", quiet=True))

    return {
        "read": read,
        "backtest": partial(backtest, spark, store, unregistered_reaction("/tape/**", WHERE)),
        "archive": archived,
    }


def _lag(options: Options) -> Table:
    """How far following jobs are behind while entries come at a steady rate, one job at a time."""
    from tape.pipeline.job_context import JobContext
    from tape.pipeline.jobs.archive import archive
    from tape.pipeline.jobs.fanout import fanout, sink_opener
    from tape.pipeline.jobs.rollup import rollup

    per_s, seconds = options.scaled(PER_S, QUICK_PER_S), options.scaled(SECONDS, QUICK_SECONDS)
    rows = []
    with _session(2) as spark, tempfile.TemporaryDirectory(prefix="tape-bench-lag-") as folder:
        sink = sink_opener(f"log:{folder}/out.jsonl", headers=[], secret="", allow_private=False)
        jobs: dict[str, Callable[[str, JobContext], object]] = {
            "archive": lambda store, now: archive(spark, store, f"{folder}/lake", now, follow=True),
            "rollup": lambda store, now: rollup(spark, store, now, follow=True),
            "fanout": lambda store, now: fanout(spark, store, "bench", sink, now, follow=True),
        }
        for name, job in jobs.items():
            options.report(f"{TITLE}: {name} behind {per_s:,} entries/s")
            lags, sent = _followed(options.lab.fresh_store("sqlite"), job, per_s, seconds)
            rows.append([name, count(sent / seconds), *(f"{value:.1f}" for value in lags)])
    notes = [f"seconds between an entry's append and the end of the round that handled it; {seconds} s; {_machine()}"]
    return Table("Lag at a steady load", ["", "entries/s", "p50 s", "p99 s", "most s"], rows, notes)


def _followed(store: str, job: Callable[[str, Any], object], per_s: int, seconds: int) -> tuple[list[float], int]:
    """Append at a rate while a job follows; percentiles of how late entries were handled, and how many there were."""
    from tape.pipeline.job_context import JobContext

    journal = GrowingJournal(store)
    journal.grow_to(per_s)
    appended: list[tuple[int, float]] = []
    handled: list[tuple[int, float]] = []

    class Watching(JobContext):
        def report_progress(self, entries: int, position: int, head: int, seconds: float) -> None:
            handled.append((position, time.monotonic()))

    now = Watching("bench", quiet=True)
    following = threading.Thread(target=job, args=(store, now))
    following.start()
    while not handled:  # the first round starts Python; it is not counted
        time.sleep(0.05)
    began, first = time.monotonic(), journal.entries
    while (elapsed := time.monotonic() - began) < seconds:
        journal.grow_to(first + int(per_s * elapsed), chunk=per_s)
        appended.append((journal.entries, time.monotonic()))
        time.sleep(0.05)
    sent = journal.entries - first
    while handled[-1][0] < journal.entries and following.is_alive():
        time.sleep(0.05)
    now.stop()
    following.join()
    late = sorted(
        next(at for position, at in handled if position >= number) - when
        for number, when in appended
        if handled[-1][0] >= number
    )
    return [statistics.median(late), late[int(len(late) * 0.99)], late[-1]], sent


class _session:  # noqa: N801  (used as a function)
    """A session on so many cores, ended afterwards."""

    def __init__(self, cores: int) -> None:
        self._cores = cores

    def __enter__(self) -> SparkSession:
        from tape.pipeline.session import open_session

        self._spark = open_session("bench", f"local[{self._cores}]", {"spark.driver.memory": "2g"})
        return self._spark

    def __exit__(self, *_: object) -> None:
        self._spark.stop()


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _machine() -> str:
    return f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} hardware threads"
