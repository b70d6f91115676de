"""Puts the commands together and turns errors into sentences."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from tape import __version__
from tape.cli import (
    append,
    cel,
    demo,
    dispatch,
    doctor,
    effects,
    migrate,
    obligations,
    pipeline,
    prune,
    reactions,
    reactors,
    relay,
    runs,
    serve,
    signal,
    tail,
    tasks,
    token,
    values,
    verify,
    wallet,
)
from tape.errors import TapeError

app = typer.Typer(
    name="tape",
    help="Tape: one durable log for agents, services and data pipelines.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for command in (
    serve.serve,
    append.append,
    tail.tail,
    dispatch.dispatch,
    effects.effects,
    obligations.obligations,
    signal.signal,
    reactors.reactors,
    token.token,
    verify.verify,
    relay.relay,
    prune.prune,
    migrate.migrate,
    doctor.doctor,
):
    app.command()(command)
app.add_typer(runs.app, name="runs")
app.add_typer(values.app, name="values")
app.add_typer(reactions.app, name="reactions")
app.add_typer(tasks.app, name="tasks")
app.add_typer(cel.app, name="cel")
app.add_typer(demo.app, name="demo")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(wallet.app, name="wallet")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tape {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """Tape: one durable log for agents, services and data pipelines."""


def main(command: Callable[[], Any] = app) -> None:
    """Run the command line; an error of Tape is one sentence, not a stack."""
    try:
        command()
    except TapeError as error:
        typer.secho(f"error {error.code}: ", fg="red", bold=True, err=True, nl=False)
        typer.echo(str(error), err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def reactors_main() -> None:
    """`tape-reactors`, the same as `tape reactors`."""
    main(_alone(reactors.reactors))


def outbox_main() -> None:
    """`tape-outbox`: only the outbox dispatcher."""
    main(_alone(reactors.outbox))


def pubsub_main() -> None:
    """`tape-pubsub-sub`: a worker that messages of Pub/Sub wake."""
    main(_alone(reactors.pubsub_worker))


def _alone(command: Callable[..., None]) -> typer.Typer:
    """A command line of one command."""
    alone = typer.Typer(pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]})
    alone.command()(command)
    return alone
