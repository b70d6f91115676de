"""`tape subscribe`: run a subscription in this process, without a server."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from tape.base.process import stop_on_signal
from tape.cli.options import DEFAULT_SERVER, HttpAllowOption, check_http_address
from tape.cli.options import run as run_loop
from tape.cli.telemetry import set_logging
from tape.cli.user_code import import_modules
from tape.errors import InvalidInput
from tape.subscriptions.events import SubscriptionEvent
from tape.subscriptions.runtime.runtime import Counts

REFRESH_S = 0.5


def subscribe(
    spec: Annotated[Path, typer.Argument(help="YAML document of kind Subscription.", metavar="SPEC.yaml")],
    dispatch: Annotated[str, typer.Option(help="Where playbooks run: local or server.")] = "local",
    server_url: Annotated[
        str,
        typer.Option(
            "--server-url",
            "--server",
            "--url",
            envvar="TAPE_SERVER_URL",
            callback=check_http_address,
            help="HTTP address of the server, for --dispatch server.",
            metavar="HTTP_URL",
        ),
    ] = DEFAULT_SERVER,
    events: Annotated[
        Path | None, typer.Option(help="File for the events; truncated at start. [default: ./<name>-events.jsonl]")
    ] = None,
    spool_dir: Annotated[
        Path | None,
        typer.Option(help="Spool folder. [default: spool.path, or .tape-spool/<name>]"),
    ] = None,
    playbook_dir: Annotated[
        Path | None, typer.Option(help="Folder of the playbooks. [default: the folder of SPEC.yaml]")
    ] = None,
    modules: Annotated[
        list[str] | None,
        typer.Option("--import", "-i", help="Module with playbooks, functions or sources; repeatable."),
    ] = None,
    credential: Annotated[Path | None, typer.Option(help="JSON file with the credential that `auth` names.")] = None,
    max_messages: Annotated[int, typer.Option(min=0, help="Stop after this many messages; 0 is no limit.")] = 0,
    once: Annotated[bool, typer.Option("--once", help="Stop after the first batch of messages.")] = False,
    http_allow: HttpAllowOption = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log at level debug.")] = False,
) -> None:
    """Run a subscription without a server: fetch messages and run their playbooks, here or on a server.

    Events are written to a file, one JSON object per line. On SIGTERM or Ctrl-C fetched messages are finished; messages
    that were not acknowledged are redelivered.
    """
    if dispatch not in ("local", "server"):
        raise InvalidInput(f"unknown --dispatch '{dispatch}' (use 'local' or 'server')")
    set_logging("debug" if verbose else "warning")
    import_modules(modules or [])
    run_loop(
        _run(
            spec,
            server_url if dispatch == "server" else "",
            events,
            spool_dir,
            playbook_dir or spec.parent,
            credential,
            max_messages or None,
            once,
        )
    )


async def _run(
    file: Path,
    server_url: str,
    events: Path | None,
    spool_dir: Path | None,
    playbook_dir: Path,
    credential: Path | None,
    max_messages: int | None,
    once: bool,
) -> None:
    from tape.subscriptions.document.local_spool import read_local, slug
    from tape.subscriptions.runtime.local import LocalRuntime, read_credential
    from tape.subscriptions.runtime.local_trail import Trail

    subscription = read_local(file, spool_dir)
    screen = _Screen()
    trail = Trail(events or Path(f"{slug(subscription.name)}-events.jsonl"), screen.show)
    local = LocalRuntime(
        subscription,
        trail,
        credential=None if credential is None else read_credential(credential),
        once=once,
        max_messages=max_messages,
    )
    dispatch, readiness, failed = _dispatch(local, trail, server_url, playbook_dir)
    spool = subscription.spec.spool
    screen.print(f"🔔 tape subscribe — {subscription.name} (source: {subscription.spec.source})")
    screen.print(f"   dispatch: {server_url or 'local'}   events: {trail.path}")
    if spool.mode != "off":
        screen.print(f"   spool: {spool.mode} in {spool.path}")
    showing = asyncio.create_task(screen.keep_showing(local))
    try:
        with stop_on_signal(local.stop):
            await local.run(dispatch, readiness)
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)
        trail.close()
    replayed = trail.seen["subscription.message.replayed"]
    counts = local.counts
    screen.print(
        f"✓ subscription stopped — received={counts.received} dispatched={counts.dispatched} spooled={counts.spooled}"
        f" replayed={replayed} failed={counts.failed + failed()} pending_spooled={local.pending}"
        + (f" duplicates={counts.duplicates}" if counts.duplicates else "")
    )


def _dispatch(local: Any, trail: Any, server_url: str, playbook_dir: Path) -> tuple[Any, Any, Any]:
    """The dispatch, the check of its playbooks, and a function that returns the number of failed executions."""

    from tape.subscriptions.api_client import Control, token_of_environment
    from tape.subscriptions.dispatch.http import ServerDispatch
    from tape.subscriptions.dispatch.in_process import InProcessDispatch, LocalReadiness, Playbooks, ServerPlaybooks
    from tape.subscriptions.runtime.local_trail import WORKER, TrailDispatch

    spec = local.subscription.spec
    if server_url:
        control = Control(server_url, token_of_environment())
        remote = ServerDispatch(
            control,
            local.ref._replace(subscription_id=0),
            batch_max=spec.dispatch_batch,
            concurrency=spec.runtime.concurrency,
            worker_id=WORKER,
        )
        readiness = LocalReadiness(ServerPlaybooks(control), local.subscription.playbooks, local.ref, trail)
        return TrailDispatch(remote, local.ref, trail), readiness, lambda: 0
    playbooks = Playbooks(playbook_dir)
    playbooks.find(spec.dispatch.playbook)  # a missing playbook fails before messages are fetched
    local_dispatch = InProcessDispatch(playbooks, local.ref, trail, spec.runtime.concurrency or 1)
    readiness = LocalReadiness(playbooks, local.subscription.playbooks, local.ref, trail)
    return local_dispatch, readiness, lambda: local_dispatch.failed


class _Screen:
    """Prints events on standard error, with a status line on a terminal."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stderr, highlight=False, soft_wrap=True)

    def print(self, line: str) -> None:
        self._console.print(Text(line))

    def show(self, event: SubscriptionEvent) -> None:
        self.print(f"  event {event.event_type} exec={event.execution_id} status={event.status}")

    async def keep_showing(self, local: Any) -> None:
        if not self._console.is_terminal:
            return
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            while True:
                live.update(Text(_line(local.counts, local.runtime), no_wrap=True, overflow="ellipsis"), refresh=True)
                await asyncio.sleep(REFRESH_S)


def _line(counts: Counts, runtime: Any) -> str:
    state = "connected" if runtime is not None and runtime.is_connected else "waiting for the source"
    in_flight = 0 if runtime is None else runtime.limiter.in_flight
    return f"{state} · {counts.received:,} received · {in_flight} in flight · {counts.dispatched:,} dispatched · " + (
        f"{counts.spooled:,} spooled · {counts.failed:,} failed"
    )
