"""How fast Spark reads the journal, beside the fastest read without Spark and Spark without a journal."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from bench.options import NAMES, Options
from bench.table import Table, count, ratio

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TITLE = "Pipeline: the journal in Spark"
ENTRIES, QUICK_ENTRIES = 300_000, 5_000
RUNS, QUICK_RUNS = 3, 1
CORES = 2
WHERE = 'kind == "bench" && payload.total > 10.0 || subject.endsWith("7")'


def run(options: Options) -> list[Table]:
    """Best of three; every reader reads all columns of all entries."""
    from tape.pipeline.session import open_session

    entries, runs = options.scaled(ENTRIES, QUICK_ENTRIES), options.scaled(RUNS, QUICK_RUNS)
    spark = open_session("bench", f"local[{CORES}]", {"spark.driver.memory": "2g"})
    try:
        rows = []
        for kind in options.stores:
            options.report(f"{TITLE}: filling {NAMES[kind]} with {entries:,} entries")
            store = options.lab.filled_store(kind, entries)
            options.report(f"{TITLE}: {NAMES[kind]}")
            rows += _measure(spark, NAMES[kind], store, entries, runs)
        return [
            Table(
                TITLE,
                ["", "what", "entries/s", "beside ADBC on one core"],
                rows,
                [f"{entries:,} entries, all columns; Spark on {CORES} cores, writing to nowhere; best of {runs}"],
            )
        ]
    finally:
        spark.stop()


def _measure(spark: SparkSession, name: str, store: str, entries: int, runs: int) -> list[list[str]]:
    from tape.pipeline.job_context import JobContext
    from tape.pipeline.jobs.archive import archive
    from tape.pipeline.jobs.backtest import backtest, unregistered_reaction

    def frame() -> DataFrame:
        return spark.read.format("tape").option("store", store).option("minPartitions", CORES).load()

    def nowhere(made: DataFrame) -> None:
        made.write.format("noop").mode("overwrite").save()

    def archived() -> None:
        with tempfile.TemporaryDirectory(prefix="tape-bench-lake-") as lake:
            assert archive(spark, store, lake, JobContext("archive", quiet=True)) == entries

    direct = _best(runs, lambda: _read_directly(store, entries))
    rows: list[tuple[str, float]] = [
        ("ADBC, one core, no Spark", direct),
        ('format("tape")', _best(runs, lambda: nowhere(frame()))),
        ("spark.range of the same shape", _best(runs, lambda: nowhere(_same_shape(spark, entries)))),
        ("archive, end to end", _best(runs, archived)),
        ("backtest", _best(runs, lambda: backtest(spark, store, unregistered_reaction("/tape/**", WHERE)))),
    ]
    return [[name, what, count(entries / seconds), ratio(direct, seconds)] for what, seconds in rows]


def _best(runs: int, work: Callable[[], object]) -> float:
    """Seconds of the quickest of several runs."""
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def _read_directly(store: str, entries: int) -> None:
    from tape.pipeline.columns import COLUMNS
    from tape.pipeline.journal_reader import read_journal_range
    from tape.pipeline.selection import EntrySelection

    batches = read_journal_range(store, COLUMNS, EntrySelection(), 0, entries, fail_on_data_loss=True)
    assert sum(batch.num_rows for batch in batches) == entries


def _same_shape(spark: SparkSession, entries: int) -> DataFrame:
    numbers = ("id", "id AS seq", "id * 1000 AS ts_ms", "timestamp_millis(id) AS ts", "1 AS version")
    texts = (f"concat('text-of-some-length-', id % 1000) AS t{number}" for number in range(12))
    return spark.range(0, entries, 1, CORES).selectExpr(*numbers, *texts)
