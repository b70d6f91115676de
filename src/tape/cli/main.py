"""The entry points of the command line: loads commands on demand and prints errors as one line."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import sys
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from tape import __version__
from tape.base.url_mask import mask_urls
from tape.cli.commands import COMMANDS, PANELS
from tape.errors import TapeError


class LazyGroup(TyperGroup):
    """The commands, each imported on first use, so that `tape append` does not import the server."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"commands": dict.fromkeys(COMMANDS)})
        self._is_listing = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, or None."""
        if self._is_listing:
            return _listed(cmd_name)
        return _load(cmd_name) if cmd_name in COMMANDS else None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """List the commands without importing them."""
        self._is_listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._is_listing = False


def _listed(name: str) -> Any:
    """A command that has only what the list shows."""
    panel, summary = next((panel, commands[name]) for panel, commands in PANELS.items() if name in commands)
    return TyperCommand(name, callback=None, help=summary, rich_help_panel=panel)


@cache
def _load(name: str) -> Any:
    module = importlib.import_module(f"tape.cli.{name.replace('-', '_')}")
    holder = typer.Typer()
    if hasattr(module, "app"):
        holder.add_typer(module.app, name=name)
    else:
        holder.command(name)(getattr(module, name))
    command = typer.main.get_group(holder).commands[name]
    _escape_markup(command)
    return command


def _escape_markup(command: Any) -> None:
    """Escape brackets in help texts: rich would remove `[default: 7878]` as markup."""
    for param in command.params:
        if text := getattr(param, "help", None):
            param.help = re.sub(r"\[(?=[a-z#/@])", r"\\[", text)
    for inner in getattr(command, "commands", {}).values():
        _escape_markup(inner)


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
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Tape: one durable log for agents, services and data pipelines."""


def main(command: Callable[[], Any] = app) -> None:
    """Run a command line; print a TapeError as one line with its code and exit with 1."""
    # gRPC writes a line of its own for every failed handshake; its errors are reported by this command.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        command()
    except TapeError as error:
        typer.secho(f"error {error.code}: ", fg="red", bold=True, err=True, nl=False)
        typer.echo(mask_urls(str(error)), err=True)
        sys.exit(1)
    except (KeyboardInterrupt, asyncio.CancelledError):  # the second is how asyncio code is interrupted
        sys.exit(130)


def reactors_main() -> None:
    """`tape-reactors`, the same as `tape reactors`."""
    from tape.cli.reactors import reactors

    main(_single(reactors))


def outbox_main() -> None:
    """`tape-outbox`: only the outbox dispatcher."""
    from tape.cli.reactors import outbox

    main(_single(outbox))


def pubsub_main() -> None:
    """`tape-pubsub-sub`: a worker that performs the effects named by Pub/Sub messages."""
    from tape.cli.reactors import pubsub_worker

    main(_single(pubsub_worker))


def _single(command: Callable[..., None]) -> typer.Typer:
    """A command line with a single command."""
    single = typer.Typer(pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]})
    single.command()(command)
    return single
