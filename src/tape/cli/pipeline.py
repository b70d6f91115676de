"""`tape pipeline`: the journal's jobs on Spark."""

from __future__ import annotations

import typer

from tape.pipeline.jobs.command import app as jobs

app = typer.Typer(no_args_is_help=True, help="Jobs on Spark: archive, rollup, backtest, ingest.")
app.add_typer(jobs, name="run")
