"""`tape pipeline`: the journal's jobs on Spark."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tape.cli.progress import bar
from tape.cli.relay import open_sink
from tape.pipeline.jobs import command
from tape.pipeline.jobs.command import Conf, Master, MetricsListen, Quiet, Store

app = typer.Typer(no_args_is_help=True, help="Jobs on Spark: archive, rollup, report, fanout, backtest, ingest.")
app.add_typer(command.app, name="run")


@command.app.command()
def fanout(
    sink: Annotated[str, typer.Option(help="Where to, as for tape relay: webhook:URL, kafka:SERVERS/TOPIC, …")],
    name: Annotated[str, typer.Option(help="What the position is kept under.")],
    store: Store = command.DEFAULT_STORE,
    subject: Annotated[str, typer.Option(help="Only subjects that match.")] = "",
    where: Annotated[str, typer.Option(help="Only entries of which this CEL predicate is true.")] = "",
    header: Annotated[list[str] | None, typer.Option(help="For webhooks: 'Name: value'.")] = None,
    secret: Annotated[str, typer.Option(envvar="TAPE_WEBHOOK_SECRET", help="For webhooks: sign bodies.")] = "",
    allow_private: Annotated[bool, typer.Option(help="For webhooks: allow addresses of your own network.")] = False,
    from_now: Annotated[bool, typer.Option(help="A new name begins with what comes, not with the oldest.")] = False,
    follow: Annotated[bool, typer.Option(help="Go on with what comes, until SIGTERM.")] = False,
    master: Master = command.DEFAULT_MASTER,
    conf: Conf = None,
    quiet: Quiet = False,
    metrics_listen: MetricsListen = "",
) -> None:
    """Hand entries to a sink from many tasks, at least once, each run in order."""
    target = partial(open_sink, sink, headers=header or [], secret=secret, allow_private=allow_private, concurrency=1)
    target().close()  # a mistake in the address is told before Spark is started
    from tape.pipeline.jobs import fanout as job
    from tape.pipeline.running import running

    with (
        command.session("fanout", master, conf) as spark,
        running("fanout", quiet=quiet, metrics_listen=metrics_listen) as now,
    ):
        count = job.fanout(
            spark, store, name, target, now, subject=subject, where=where, from_now=from_now, follow=follow
        )
    typer.echo(f"Handed over {count:,} entries.")


@app.command()
def demo(
    folder: Annotated[Path | None, typer.Option(help="Where to; a new temporary folder if not given.")] = None,
    entries: Annotated[int, typer.Option(min=100, help="About how many entries to make up.")] = 300_000,
    days: Annotated[float, typer.Option(min=0.1, help="Over how many days.")] = 3.0,
    show: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
    master: Master = command.DEFAULT_MASTER,
) -> None:
    """Make up a journal of some days and run archive, rollup, backtest and report on it."""
    command.check_installed()
    from tape.demo.pipeline import fill, run_jobs

    place = (folder or Path(tempfile.mkdtemp(prefix="tape-demo-"))).resolve()
    typer.echo(f"journal: about {entries:,} entries of {days:g} days in {place}")
    with bar("making up") as progress:
        store = fill(place, entries, days, progress)
    with command.session("demo", master, None) as spark:
        page = run_jobs(spark, place, store, days, typer.echo)
    typer.echo(f"\nThe report: {page}")
    if show:
        typer.launch(str(page))
