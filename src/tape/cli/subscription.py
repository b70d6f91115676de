"""`tape subscription run`: fetch the messages of a subscription and make runs of them, in a process of its own."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from tape.base.owner import process_name
from tape.base.process import stop_on_signal
from tape.cli.options import DEFAULT_SERVER, HttpAllowOption, ServerOption
from tape.cli.options import run as run_loop
from tape.cli.user_code import import_modules
from tape.errors import InvalidInput
from tape.subscriptions.api_client import TOKEN_VARIABLE, Control
from tape.subscriptions.runtime.runtime import Counts

# Requests to the server at once, at most; `runtime.concurrency` of a spec may ask for fewer.
MAX_REQUESTS = 64

app = typer.Typer(help="Run a pull subscription.", no_args_is_help=True)


@app.callback()
def about() -> None:
    """Run a pull subscription."""


@app.command()
def run(
    path: Annotated[str, typer.Argument(help="The subscription's path in the catalog.")],
    server: ServerOption = DEFAULT_SERVER,
    token: Annotated[
        str, typer.Option("--token", envvar=TOKEN_VARIABLE, help="The server's internal token.", show_default=False)
    ] = "",
    worker_id: Annotated[str, typer.Option(help="The name in its events. [default: <host>-<pid>]")] = "",
    modules: Annotated[
        list[str] | None, typer.Option("--import", "-i", help="A module with a source of yours; may be repeated.")
    ] = None,
    keep_active: Annotated[
        bool, typer.Option("--keep-active", help="Leave the subscription active when told to stop: others run it, too.")
    ] = False,
    metrics_listen: Annotated[str, typer.Option(help="Serve Prometheus metrics here, e.g. 127.0.0.1:9464.")] = "",
    http_allow: HttpAllowOption = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "warning",
) -> None:
    """Fetch messages, make runs of them on the server, and acknowledge what is durable there; until told to stop.

    Needs no database: the server's address and its internal token are all it knows. SIGTERM and Ctrl-C let it finish
    what it has fetched and deactivate the subscription, which the next start activates again; a second one ends at
    once, and what was not acknowledged comes again.
    """
    set_logging(log_level)
    import_modules(modules or [])
    name = worker_id or process_name()
    control = Control(server, token, connections=MAX_REQUESTS)
    counts = run_loop(_run(path, control, name, metrics_listen, keep_active))
    typer.echo(summary(counts))


async def _run(path: str, control: Control, name: str, metrics_listen: str, keep_active: bool) -> Counts:
    from tape.subscriptions.runtime.remote import RemoteRuntime

    elsewhere = RemoteRuntime(path, control, name, keeps_active=keep_active)
    if metrics_listen:
        serve_metrics(elsewhere.metrics.registry, metrics_listen)
    typer.echo(f"{path} from {control.url}. Ctrl-C stops it.", err=True)
    with stop_on_signal(elsewhere.stop):
        return await elsewhere.run()


def serve_metrics(registry: object, listen: str) -> None:
    """Serve a registry's metrics at an address."""
    from prometheus_client import start_http_server

    host, _, port = listen.rpartition(":")
    if not port.isdecimal():
        raise InvalidInput(f"--metrics-listen {listen!r} must look like 127.0.0.1:9464.")
    start_http_server(int(port), host or "127.0.0.1", registry=registry)  # type: ignore[arg-type]  # a registry it is


def set_logging(level: str) -> None:
    """Log to standard error from a level on."""
    if level.upper() not in logging.getLevelNamesMapping():
        raise InvalidInput(f"--log-level {level!r} must be debug, info, warning or error.")
    logging.basicConfig(
        level=level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    )


def summary(counts: Counts) -> str:
    """What was done."""
    text = f"{counts.received:,} received, {counts.dispatched:,} dispatched, {counts.failed:,} failed"
    rare = {"duplicates": counts.duplicates, "spooled": counts.spooled, "dead": counts.dead}
    return text + "".join(f", {number:,} {name}" for name, number in rare.items() if number) + "."
