"""`tape dispatch`: run the reaction handlers of modules."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from tape.cli.options import DEFAULT_URL, LogLevelOption, OwnerOption, UrlOption
from tape.cli.telemetry import set_logging
from tape.errors import InvalidInput
from tape.reactions.counters import Tally

REFRESH_S = 0.5


def dispatch(
    modules: Annotated[
        list[str] | None,
        typer.Argument(help="Modules with @tape.on… functions: package.module or file.py.", metavar="MODULE…"),
    ] = None,
    bridges: Annotated[bool, typer.Option("--bridges", help="Also run reactions that publish to a broker.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Process what is due, then exit.")] = False,
    register: Annotated[bool, typer.Option(help="Register the reactions at start.")] = True,
    prefix: Annotated[str, typer.Option(help="Prefix of the id of every reaction.")] = "",
    owner: OwnerOption = "",
    claim_max: Annotated[int, typer.Option(help="Largest number of tasks in flight per reaction.")] = 16,
    lease_ms: Annotated[int, typer.Option(help="Task lease in milliseconds; renewed while the handler runs.")] = 60_000,
    poll_interval_s: Annotated[
        float, typer.Option(help="Seconds between polls of a server that does not push tasks.")
    ] = 0.5,
    drain_s: Annotated[float, typer.Option(help="Seconds that running handlers get to finish on stop.")] = 30.0,
    log_level: LogLevelOption = "warning",
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Import modules, register their reactions and run their handlers until stopped.

    On SIGTERM or Ctrl-C running handlers finish and unstarted tasks are released; a second signal stops at once.
    """
    from tape.reactions.dispatcher import run_dispatcher

    set_logging(log_level)
    for name in modules or []:
        load_module(name)
    tally = Tally()
    with status_line(tally):
        run_dispatcher(
            url,
            owner=owner,
            poll_interval_s=poll_interval_s,
            once=once,
            register=register,
            prefix=prefix,
            claim_max=claim_max,
            lease_ms=lease_ms,
            bridges=bridges,
            drain_s=drain_s,
            tally=tally,
        )
    typer.echo(summary(tally))


def load_module(name: str) -> None:
    """Import a module by its name, from the working directory too, or a file by its path."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    if not name.endswith(".py"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # the module exists, but one of its imports does not
            raise InvalidInput(f"There is no module {name!r} in {Path.cwd()} or in the installed packages.") from error
        return
    path = Path(name).resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise InvalidInput(f"There is no Python file {name!r}.")
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


@contextmanager
def status_line(tally: Tally) -> Iterator[None]:
    """A status line on standard error, if it is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    over = threading.Event()
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def show() -> None:
            while not over.wait(REFRESH_S):
                live.update(Text(line(tally), no_wrap=True, overflow="ellipsis"), refresh=True)

        thread = threading.Thread(target=show, name="tape-status", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def line(tally: Tally) -> str:
    """Rate, tasks in flight and results, in one line."""
    parts = [f"{time.strftime('%H:%M:%S')}  {tally.rate:,.0f}/s", f"{tally.in_flight} in flight"]
    parts += [f"{tally.done:,} done", f"{tally.failed:,} failed", f"{tally.dead:,} dead"]
    rare = {"lost": tally.lost, "stuck": tally.stuck, "reconnects": tally.reconnects}
    parts += [f"{number:,} {name}" for name, number in rare.items() if number]
    return " · ".join(parts) + (" · polling" if tally.is_polling else "")


def summary(tally: Tally) -> str:
    """The totals at the end."""
    text = f"{tally.done:,} done, {tally.failed:,} failed, {tally.dead:,} dead"
    rare = {"released": tally.released, "lost": tally.lost, "stuck": tally.stuck}
    return text + "".join(f", {number:,} {name}" for name, number in rare.items() if number) + "."
