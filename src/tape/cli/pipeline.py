"""`tape pipeline`: Spark jobs on the journal."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tape.cli.progress import bar
from tape.pipeline.jobs import command

app = typer.Typer(
    no_args_is_help=True, help="Jobs on Spark: archive, rollup, report, match, backtest, replay, fanout, ingest."
)
app.add_typer(command.app, name="run")


@app.command()
def demo(
    folder: Annotated[
        Path | None, typer.Option(help="Folder for the results. [default: a new temporary folder]")
    ] = None,
    entries: Annotated[int, typer.Option(min=100, help="Approximate number of entries to generate.")] = 300_000,
    days: Annotated[float, typer.Option(min=0.1, help="Number of days that the entries cover.")] = 3.0,
    show: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
    master: command.Master = command.DEFAULT_MASTER,
) -> None:
    """Generate a journal and run archive, rollup, backtest and report on it."""
    command.check_installed()
    from tape.demo.pipeline import fill, run_jobs

    target = (folder or Path(tempfile.mkdtemp(prefix="tape-demo-"))).resolve()
    typer.echo(f"journal: about {entries:,} entries of {days:g} days in {target}")
    with bar("generating") as progress:
        store = fill(target, entries, days, progress)
    with command.session("demo", master, None) as spark:
        page = run_jobs(spark, target, store, days, typer.echo)
    typer.echo(f"\nThe report: {page}")
    if show:
        typer.launch(str(page))
