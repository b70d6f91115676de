"""The demonstration of the pipeline: generates a journal and runs archive, rollup, backtest and report on it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tape.base.clock import now_ms
from tape.demo import history
from tape.errors import PipelineInput
from tape.pipeline.batch_writer import transact
from tape.pipeline.job_context import JobContext
from tape.pipeline.jobs.archive import archive
from tape.pipeline.jobs.backtest import backtest, unregistered_reaction
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
    """Generate a journal of about so many entries in a folder without one; return the URL of its store."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / JOURNAL
    if path.exists():
        raise PipelineInput(f"There is a journal at {path} already; give a folder without one.")
    store = f"sqlite:{path}"
    open_database(store).migrate()
    now = now_ms()
    drafts = history.make_history(entries, until_ms=now, days=days)
    for part in history.split_history(drafts, PART_ENTRIES, lambda done: progress(done, len(drafts))):
        transact(store, partial(history.write_history, drafts=part))
    transact(store, lambda tx: history.write_dead_letters(tx, now))
    return store


def run_jobs(spark: SparkSession, folder: Path, store: str, days: float, say: Callable[[str], None]) -> Path:
    """Run archive, rollup, backtest and report, and print what each does; return the path of the report."""
    lake, page = str(folder / LAKE), folder / PAGE
    say("archive: copy the journal to Parquet files with its hash chain")
    archive(spark, store, lake, JobContext("archive"))
    say("rollup: counts, outcomes and durations per minute, hour and day")
    rollup(spark, store, JobContext("rollup"))
    say(f"backtest: how often would a reaction to orders with {WHERE} have fired?")
    found = backtest(spark, store, unregistered_reaction(SUBJECT, WHERE), lake=lake)
    say(f"  {found.fired:,} times on {found.entries:,} orders")
    say(f"report: the last {days:g} days on one page")
    report(spark, store, page, lake=lake, since=f"{round(days * 24)}h")
    return page
