"""`tape subscription run`: the remote runtime of a pull subscription."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tape.base.owner import process_name
from tape.base.process import stop_on_signal
from tape.cli.options import (
    DEFAULT_SERVER,
    HttpAllowOption,
    LogLevelOption,
    ServerOption,
    read_secret_file,
    warn_of_secret,
)
from tape.cli.options import run as run_loop
from tape.cli.telemetry import serve_metrics, set_logging
from tape.cli.user_code import import_modules
from tape.subscriptions.api_client import TOKEN_VARIABLE, Control
from tape.subscriptions.runtime.runtime import Counts

# Largest number of concurrent requests to the server; `runtime.concurrency` of a spec may be lower.
MAX_REQUESTS = 64

app = typer.Typer(help="Run a pull subscription.", no_args_is_help=True)


@app.callback()
def subscription() -> None:
    """Run a pull subscription."""


@app.command()
def run(
    context: typer.Context,
    path: Annotated[str, typer.Argument(help="Path of the subscription in the catalog.")],
    server: ServerOption = DEFAULT_SERVER,
    token: Annotated[
        str,
        typer.Option(
            "--token",
            envvar=["TAPE_TOKEN", TOKEN_VARIABLE],
            help="Service key, or internal token of the server.",
            show_default=False,
        ),
    ] = "",
    token_file: Annotated[Path | None, typer.Option(help="File with the service key or internal token.")] = None,
    worker_id: Annotated[str, typer.Option(help="Worker id in events. [default: <host>-<pid>]")] = "",
    modules: Annotated[
        list[str] | None, typer.Option("--import", "-i", help="Module with a custom source; repeatable.")
    ] = None,
    keep_active: Annotated[
        bool,
        typer.Option("--keep-active", help="Leave the subscription active on stop, because other runtimes run it too."),
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="End when the source is empty; also runs a scheduled subscription.")
    ] = False,
    metrics_listen: Annotated[
        str,
        typer.Option(
            "--metrics-listen", help="Serve /livez, /readyz, /backlog and /metrics on this address: 127.0.0.1:9464."
        ),
    ] = "",
    http_allow: HttpAllowOption = None,
    log_level: LogLevelOption = "warning",
) -> None:
    """Fetch messages, start their executions on the server, and acknowledge them once they are durable there.

    Needs no database, only the address and the internal token of the server. On SIGTERM or Ctrl-C it finishes fetched
    messages and deactivates the subscription; the next start activates it again. A second signal stops at once;
    messages that were not acknowledged are redelivered. With --metrics-listen, /readyz is 200 while source, server and
    spool can be used, else 503 with the reasons.
    """
    set_logging(log_level)
    warn_of_secret(context, "token", "set TAPE_TOKEN or use --token-file")
    if token_file is not None:
        token = read_secret_file("--token-file", token_file)
    import_modules(modules or [])
    name = worker_id or process_name()
    control = Control(server, token, connections=MAX_REQUESTS)
    counts = run_loop(_run(path, control, name, metrics_listen, keep_active, once))
    typer.echo(summary(counts))


async def _run(path: str, control: Control, name: str, metrics_listen: str, keep_active: bool, once: bool) -> Counts:
    from tape.subscriptions.runtime.remote import RemoteRuntime

    runtime = RemoteRuntime(path, control, name, keeps_active=keep_active, once=once)
    health = runtime.health
    if metrics_listen:
        serve_metrics(
            runtime.metrics.registry,
            metrics_listen,
            not_ready=health.not_ready,
            not_alive=health.not_alive,
            backlog=health.backlog,
        )
    typer.echo(f"{path} from {control.url}. Ctrl-C stops it.", err=True)
    with stop_on_signal(runtime.stop):
        return await runtime.run()


def summary(counts: Counts) -> str:
    """The totals at the end."""
    text = f"{counts.received:,} received, {counts.dispatched:,} dispatched, {counts.failed:,} failed"
    rare = {"duplicates": counts.duplicates, "spooled": counts.spooled, "dead": counts.dead}
    return text + "".join(f", {number:,} {name}" for name, number in rare.items() if number) + "."
