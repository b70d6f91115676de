"""`tape worker`: runs the playbooks of a pool."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from tape.cli.dispatch import status_line, summary
from tape.cli.options import DEFAULT_URL, HttpAllowOption, UrlOption
from tape.cli.user_code import import_modules
from tape.errors import InvalidInput
from tape.reactions.counters import Tally

ImportOption = Annotated[
    list[str],
    typer.Option("--import", "-i", help="A module with @tape.playbook and @tape.function in it; may be repeated."),
]


def worker(
    pool: Annotated[str, typer.Option(help="The pool whose playbooks it runs.")] = "shared",
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1, max=1_000, help="So many at a time.")] = 4,
    modules: ImportOption = [],  # noqa: B006 - typer reads it, nobody changes it
    announce: Annotated[bool, typer.Option(help="Put its Python playbooks into the catalog first.")] = True,
    once: Annotated[bool, typer.Option("--once", help="Work off what is due, then end.")] = False,
    owner: Annotated[str, typer.Option(help="The name that leases are in. [default: host, process and chance]")] = "",
    lease_ms: Annotated[int, typer.Option(min=100, help="After so long without a sign of life others take over.")] = (
        30_000
    ),
    drain_s: Annotated[float, typer.Option(min=0, help="Seconds that playbooks have to finish when it stops.")] = 30.0,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "warning",
    http_allow: HttpAllowOption = None,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Take the commands of a pool and run their playbooks, until told to stop.

    SIGTERM and Ctrl-C let what runs finish; what does not is left to other workers, who go on where it was.
    """
    from tape.playbooks.worker import run_worker

    if log_level.upper() not in logging.getLevelNamesMapping():
        raise InvalidInput(f"--log-level {log_level!r} must be debug, info, warning or error.")
    logging.basicConfig(
        level=log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    )
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
