"""Puts the commands together and turns errors into sentences."""

from __future__ import annotations

import asyncio
import importlib
import re
import sys
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tape import __version__
from tape.errors import TapeError

# Each is a module beside this one, with a function of that name or, for one that has commands of its own, an `app`.
COMMANDS = (
    "serve",
    "gateway",
    "append",
    "tail",
    "dispatch",
    "effects",
    "obligations",
    "signal",
    "reactors",
    "token",
    "verify",
    "relay",
    "prune",
    "migrate",
    "doctor",
    "runs",
    "values",
    "reactions",
    "tasks",
    "cel",
    "demo",
    "pipeline",
    "subscriptions",
    "schema",
    "wallet",
    "subscription",
    "worker",
    "execute",
    "playbooks",
    "subscribe",
    "spool",
)


class LazyGroup(TyperGroup):
    """The commands, each loaded when it is asked for: appending an event need not wait for what a server needs."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"commands": dict.fromkeys(COMMANDS)})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, or None."""
        return _load(cmd_name) if cmd_name in COMMANDS else None


@cache
def _load(name: str) -> Any:
    module = importlib.import_module(f"tape.cli.{name}")
    holder = typer.Typer()
    if hasattr(module, "app"):
        holder.add_typer(module.app, name=name)
    else:
        holder.command(name)(getattr(module, name))
    command = typer.main.get_group(holder).commands[name]
    _take_literally(command)
    return command


def _take_literally(command: Any) -> None:
    """Brackets in help texts are shown: without this, what looks like markup (`[default: 7878]`) would vanish."""
    for param in command.params:
        if text := getattr(param, "help", None):
            param.help = re.sub(r"\[(?=[a-z#/@])", r"\\[", text)
    for inner in getattr(command, "commands", {}).values():
        _take_literally(inner)


app = typer.Typer(
    cls=LazyGroup,
    name="tape",
    help="Tape: one durable log for agents, services and data pipelines.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
    except (KeyboardInterrupt, asyncio.CancelledError):  # the second is how asyncio code is interrupted
        sys.exit(130)


def reactors_main() -> None:
    """`tape-reactors`, the same as `tape reactors`."""
    from tape.cli.reactors import reactors

    main(_alone(reactors))


def outbox_main() -> None:
    """`tape-outbox`: only the outbox dispatcher."""
    from tape.cli.reactors import outbox

    main(_alone(outbox))


def pubsub_main() -> None:
    """`tape-pubsub-sub`: a worker that messages of Pub/Sub wake."""
    from tape.cli.reactors import pubsub_worker

    main(_alone(pubsub_worker))


def _alone(command: Callable[..., None]) -> typer.Typer:
    """A command line of one command."""
    alone = typer.Typer(pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]})
    alone.command()(command)
    return alone
