"""The data pipeline at work: a made-up journal is archived, summed up, searched and shown."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tape.base.clock import now_ms
from tape.demo import history
from tape.errors import PipelineInput
from tape.pipeline.batches import transact
from tape.pipeline.job_context import Running
from tape.pipeline.jobs.archive import archive
from tape.pipeline.jobs.backtest import backtest, imagined
from tape.pipeline.jobs.report import report
from tape.pipeline.jobs.rollup import rollup
from tape.store import open_database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WHERE = "payload.total > 500.0"
SUBJECT = "/tape/order/created/**"
PART_ENTRIES = 20_000
JOURNAL, LAKE, PAGE = "tape.db", "lake", "report.html"


def fill(folder: Path, entries: int, days: float, progress: Callable[[int, int], None]) -> str:
    """A journal of about so many entries in a folder that has none yet; the URL of its store."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / JOURNAL
    if path.exists():
        raise PipelineInput(f"There is a journal at {path} already; give a folder without one.")
    store = f"sqlite:{path}"
    open_database(store).migrate()
    now = now_ms()
    told = history.make_history(entries, until_ms=now, days=days)
    for part in history.in_parts(told, PART_ENTRIES, lambda done: progress(done, len(told))):
        transact(store, partial(history.write_history, told=part))
    transact(store, lambda tx: history.write_letters(tx, now))
    return store


def run_jobs(spark: SparkSession, folder: Path, store: str, days: float, say: Callable[[str], None]) -> Path:
    """Archive, rollup, backtest and report; what each does is said, and its progress told. The path of the report."""
    lake, page = str(folder / LAKE), folder / PAGE
    say("archive: the journal as Parquet files that prove themselves")
    archive(spark, store, lake, Running("archive"))
    say("rollup: counts, outcomes and durations per minute, hour and day")
    rollup(spark, store, Running("rollup"))
    say(f"backtest: how often would a reaction to orders with {WHERE} have fired?")
    found = backtest(spark, store, imagined(SUBJECT, WHERE), lake=lake)
    say(f"  {found.fired:,} times on {found.entries:,} orders")
    say(f"report: the last {days:g} days on one page")
    report(spark, store, page, lake=lake, since=f"{round(days * 24)}h")
    return page
