"""The entry points of the command line: loads commands on demand and prints errors as one line."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tape import __version__
from tape.base.garbage import collection_paused
from tape.base.url_mask import mask_urls
from tape.cli.commands import COMMANDS, PANELS
from tape.cli.plain_values import take_plain_values
from tape.errors import RunInterrupted, TapeError


class LazyGroup(TyperGroup):
    """The commands, each imported on first use, so that `tape append` does not import the server."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"commands": dict.fromkeys(COMMANDS)})
        self._loaded: dict[str, Any] = {}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, or None."""
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in self._loaded:
            with collection_paused():
                self._loaded[cmd_name] = command = _load(cmd_name)
                _prepare(command, ctx)
        return self._loaded[cmd_name]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options before the command."""
        for parameter in self.get_params(ctx):
            take_plain_values(parameter)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """List the commands without importing them."""
        usage = self.get_usage(ctx).removeprefix("Usage: ")
        options = [_listed(option) for option in self.get_params(ctx)]
        with collection_paused():
            from tape.cli.help_page import print_help  # needs rich, which most commands do not

            print_help(usage, self.help or "", options, PANELS)


def _listed(option: Any) -> tuple[str, str, str]:
    """The long name, the short name and the help of an option."""
    names = sorted(option.opts, key=len)
    return names[-1], names[0] if len(names) > 1 else "", option.help


def _load(name: str) -> Any:
    module = importlib.import_module(f"tape.cli.{name.replace('-', '_')}")
    holder = typer.Typer()
    if hasattr(module, "app"):
        holder.add_typer(module.app, name=name)
    else:
        holder.command(name)(getattr(module, name))
    return typer.main.get_group(holder).commands[name]


def _prepare(command: Any, ctx: Any) -> None:
    """Prepare the parameters of a command and of its subcommands, `--help` included."""
    for parameter in command.get_params(ctx):
        _escape_markup(parameter)
        take_plain_values(parameter)
    for inner in getattr(command, "commands", {}).values():
        _prepare(inner, ctx)


def _escape_markup(parameter: Any) -> None:
    """Escape brackets in help texts: rich would remove `[default: 7878]` as markup."""
    if text := getattr(parameter, "help", None):
        parameter.help = re.sub(r"\[(?=[a-z#/@])", r"\\[", text)


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
    except (TapeError, RunInterrupted) as error:
        typer.secho(f"error {error.code}: ", fg="red", bold=True, err=True, nl=False)
        typer.echo(mask_urls(str(error)), err=True)
        sys.exit(1)
    except SystemExit:  # the end of every command: the next clause would import asyncio
        raise
    except _interruptions():
        sys.exit(130)


def _interruptions() -> tuple[type[BaseException], ...]:
    """What a command raises that is interrupted: asyncio cancels the task."""
    import asyncio

    return KeyboardInterrupt, asyncio.CancelledError


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
