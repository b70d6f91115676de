"""`tape worker`: run the playbooks of a pool."""

from __future__ import annotations

from typing import Annotated

import typer

from tape.cli.dispatch import status_line, summary
from tape.cli.options import DEFAULT_URL, HttpAllowOption, LogLevelOption, OwnerOption, UrlOption
from tape.cli.telemetry import set_logging
from tape.cli.user_code import import_modules
from tape.reactions.counters import Tally

ImportOption = Annotated[
    list[str],
    typer.Option("--import", "-i", help="Module with @tape.playbook or @tape.function; repeatable."),
]


def worker(
    pool: Annotated[str, typer.Option(help="Execution pool to work for.")] = "shared",
    concurrency: Annotated[
        int, typer.Option("--concurrency", "-c", min=1, max=1_000, help="Number of concurrent executions.")
    ] = 4,
    modules: ImportOption = [],  # noqa: B006 - typer reads it, never mutated
    announce: Annotated[
        bool, typer.Option(help="Register the Python playbooks of --import in the catalog at start.")
    ] = True,
    once: Annotated[bool, typer.Option("--once", help="Process what is due, then exit.")] = False,
    owner: OwnerOption = "",
    lease_ms: Annotated[int, typer.Option(min=100, help="Lease in milliseconds; renewed while the execution runs.")] = (
        30_000
    ),
    drain_s: Annotated[
        float, typer.Option(min=0, help="Seconds that running executions get to finish on stop.")
    ] = 30.0,
    log_level: LogLevelOption = "warning",
    http_allow: HttpAllowOption = None,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Claim the executions of a pool and run their playbooks until stopped.

    On SIGTERM or Ctrl-C running executions get --drain-s seconds to finish; other workers resume those that do not.
    """
    from tape.playbooks.worker import run_worker

    set_logging(log_level)
    import_modules(modules)
    tally = Tally()
    with status_line(tally):
        run_worker(
            url,
            pool=pool,
            concurrency=concurrency,
            owner=owner,
            lease_ms=lease_ms,
            drain_s=drain_s,
            once=once,
            announce=announce,
            tally=tally,
        )
    typer.echo(summary(tally))
