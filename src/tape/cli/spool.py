"""`tape spool`: list, show, drain, requeue and purge spooled messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from tape.base.clock import now_ms
from tape.base.telemetry.metrics import Metrics
from tape.cli.options import DEFAULT_SERVER, Output, OutputOption, ServerOption, YesOption, run
from tape.cli.output import age, print_json, print_table
from tape.errors import ApiRefused, DamagedSpoolItem, InvalidInput, NotFound, ServerUnreachable
from tape.model.tenant_names import name_within, tenant_of
from tape.subscriptions.api_client import TOKEN_VARIABLE, Control, connect
from tape.subscriptions.dispatch.assembly import forwarder_of
from tape.subscriptions.dispatch.http import ServerDispatch
from tape.subscriptions.document.spec import Subscription
from tape.subscriptions.document.validator import parse_subscription
from tape.subscriptions.events import SubscriptionEvent, subscription_ref
from tape.subscriptions.spool.backend import Area, AreaSize
from tape.subscriptions.spool.item import SpoolItem, decode
from tape.subscriptions.spool.locations import spool_hosts
from tape.subscriptions.spool.spool import Spool

app = typer.Typer(help="List, show, drain, requeue and purge spooled messages.", no_args_is_help=True)

T = TypeVar("T")


class SpoolPart(StrEnum):
    """The parts of a spool that can be listed."""

    waiting = "waiting"
    dead = "dead"
    quarantine = "quarantine"


_AREAS = {SpoolPart.waiting: Area.LIVE, SpoolPart.dead: Area.DEAD, SpoolPart.quarantine: Area.QUARANTINE}

WhichArgument = Annotated[
    str, typer.Argument(help="Path of a subscription on the server, or a file with its document.", metavar="PATH|FILE")
]
PartOption = Annotated[
    SpoolPart, typer.Option("--part", "-p", help="Part of the spool: waiting messages, dead letters or quarantine.")
]
FolderOption = Annotated[
    Path | None,
    typer.Option(
        "--spool-dir", help="With FILE: spool folder of `tape subscribe`. [default: spool.path, or .tape-spool/<name>]"
    ),
]
KeysArgument = Annotated[list[str] | None, typer.Argument(help="Keys, as shown by `tape spool ls`.", metavar="[KEY…]")]


@app.command("ls")
def list_items(
    which: WhichArgument,
    part: PartOption = SpoolPart.waiting,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of messages.")] = 50,
    server: ServerOption = DEFAULT_SERVER,
    folder: FolderOption = None,
    output: OutputOption = Output.text,
) -> None:
    """List messages, oldest first, with the number of all messages, their bytes and the age of the oldest."""

    async def work(spool: Spool) -> tuple[list[dict[str, Any]], AreaSize]:
        page = await spool.backend.page(_AREAS[part], "", limit)
        return [await _summary(spool, _AREAS[part], key) for key, _ in page], await spool.backend.measure(_AREAS[part])

    items, extent = _with_spool(which, server, folder, work)
    since_ms = [each["spooled_at_ms"] for each in items if "spooled_at_ms" in each]
    oldest_ms = now_ms() - since_ms[0] if since_ms else None
    if output is Output.json:
        oldest_s = None if oldest_ms is None else round(oldest_ms / 1_000, 3)
        print_json(
            {
                "part": part,
                "items": extent.items,
                "bytes": extent.size,
                "oldest_age_seconds": oldest_s,
                "messages": items,
            }
        )
        return
    print_table(
        ("key", "message", "downstream", "ordering key", "attempts", "age", "reason"),
        (
            (
                each["key"],
                each.get("message_id", ""),
                each.get("downstream", ""),
                each.get("ordering_key", ""),
                str(each.get("attempts", "")),
                age(now_ms() - each.get("spooled_at_ms", now_ms())),
                each["reason"],
            )
            for each in items
        ),
        nothing="No messages.",
    )
    if items:
        more = f" (… {extent.items - len(items):,} more)" if extent.items > len(items) else ""
        since = "" if oldest_ms is None else f", oldest {age(oldest_ms)}"
        typer.echo(f"\n{extent.items:,} messages{more}, {extent.size:,} bytes{since}.")


@app.command()
def show(
    which: WhichArgument,
    key: Annotated[str, typer.Argument(help="Key, as shown by `tape spool ls`.")],
    part: PartOption = SpoolPart.waiting,
    server: ServerOption = DEFAULT_SERVER,
    folder: FolderOption = None,
) -> None:
    """Show one message and its dispatch plan as JSON."""

    async def work(spool: Spool) -> bytes:
        found = await spool.backend.get(_AREAS[part], key)
        if found is None:
            raise _no_such([key], which, part)
        return found

    data = _with_spool(which, server, folder, work)
    try:
        print_json(msgspec.to_builtins(decode(key, data)))
    except DamagedSpoolItem as error:
        typer.echo(f"{error}\n", err=True)
        typer.echo(data.decode(errors="replace"))
        raise typer.Exit(1) from None


@app.command()
def drain(which: WhichArgument, server: ServerOption = DEFAULT_SERVER, output: OutputOption = Output.text) -> None:
    """Replay waiting messages now, in order. A message that another process also replays becomes one execution.

    Exits with 1 if messages remain.
    """
    subscription, control = _resolve(which, server)
    if control is None:
        raise InvalidInput(f"{which} is a file; `tape subscribe {which}` drains its spool at start.")
    _check_spool(subscription)
    status = control.register(subscription.path)
    ref = subscription_ref(subscription.path, int(status["subscription_id"]))

    async def work() -> Any:
        dispatch = ServerDispatch(control, ref, batch_max=100)
        forwarder = forwarder_of(
            subscription,
            ref,
            dispatch,
            _emitter(control),
            metrics=Metrics(),
            credential=_credential(subscription, control),
        )
        try:
            await forwarder.start()
            return await forwarder.drain()
        finally:
            await forwarder.close()

    report = run(work())
    if output is Output.json:
        print_json(msgspec.to_builtins(report))
        return
    typer.echo(
        f"{report.replayed} replayed, {report.deduped} duplicates, {len(report.dead_lettered)} dead-lettered,"
        f" {len(report.quarantined)} quarantined, {report.remaining} remaining."
    )
    if report.remaining:
        raise typer.Exit(1)


@app.command()
def requeue(
    which: WhichArgument,
    keys: KeysArgument = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters.")] = False,
    server: ServerOption = DEFAULT_SERVER,
    folder: FolderOption = None,
) -> None:
    """Move dead letters back to their position in the queue, with attempts reset to 0.

    A runtime picks them up within 30 seconds; `tape spool drain` replays them at once.
    """

    async def work(spool: Spool) -> int:
        return await spool.requeue(await _chosen(spool, which, SpoolPart.dead, keys, everything))

    typer.echo(f"{_with_spool(which, server, folder, work)} requeued.")


@app.command()
def purge(
    which: WhichArgument,
    keys: KeysArgument = None,
    part: PartOption = SpoolPart.dead,
    everything: Annotated[bool, typer.Option("--all", help="All messages of this part.")] = False,
    yes: YesOption = False,
    server: ServerOption = DEFAULT_SERVER,
    folder: FolderOption = None,
) -> None:
    """Remove messages permanently."""

    async def choose(spool: Spool) -> list[str]:
        return await _chosen(spool, which, part, keys, everything)

    chosen = _with_spool(which, server, folder, choose)
    if chosen and not yes:
        typer.confirm(f"Remove {len(chosen):,} messages ({part}) permanently?", abort=True)

    async def work(spool: Spool) -> None:
        if part is SpoolPart.waiting:
            await spool.drop(chosen)
        else:
            await spool.backend.delete(_AREAS[part], chosen)

    _with_spool(which, server, folder, work)
    typer.echo(f"{len(chosen)} removed.")


async def _chosen(spool: Spool, which: str, part: SpoolPart, keys: Sequence[str] | None, everything: bool) -> list[str]:
    if bool(keys) == everything:
        raise InvalidInput("name the keys, or use --all.")
    if everything:
        return [stored.key async for stored in spool.walk(_AREAS[part])]
    if missing := [key for key in keys or () if await spool.backend.get(_AREAS[part], key) is None]:
        raise _no_such(missing, which, part)
    return list(dict.fromkeys(keys or ()))


def _no_such(keys: Sequence[str], which: str, part: SpoolPart) -> NotFound:
    named = ", ".join(map(repr, keys))
    return NotFound(f"KEY {named} is not in this part of the spool; see `tape spool ls {which} --part {part}`.")


async def _summary(spool: Spool, area: Area, key: str) -> dict[str, Any]:
    data = await spool.backend.get(area, key)
    try:
        item: SpoolItem = decode(key, data or b"")
    except DamagedSpoolItem as error:
        return {"key": key, "reason": str(error)}
    fields: dict[str, Any] = msgspec.to_builtins(item)
    return {"key": key, **{name: value for name, value in fields.items() if name not in ("message", "plan", "seal")}}


def _with_spool(which: str, server: str, folder: Path | None, work: Callable[[Spool], Awaitable[T]]) -> T:
    subscription, control = _resolve(which, server, folder)
    _check_spool(subscription)
    ref = subscription_ref(subscription.path)

    async def opened() -> T:
        forwarder = forwarder_of(
            subscription,
            ref,
            _dispatch_nothing,
            _emitter(control),
            metrics=Metrics(),
            credential=_credential(subscription, control),
        )
        assert forwarder.spool is not None
        try:
            return await work(forwarder.spool)
        finally:
            await forwarder.close()

    return run(opened())


def _check_spool(subscription: Subscription) -> None:
    if subscription.spec.spool.mode == "off":
        raise InvalidInput(f"{subscription.path} has no spool: its spool.mode is off.")


def _resolve(which: str, server: str, folder: Path | None = None) -> tuple[Subscription, Control | None]:
    if Path(which).is_file():
        from tape.subscriptions.document.local_spool import read_local

        return read_local(Path(which), folder), None
    if folder is not None:
        raise InvalidInput(f"--spool-dir {folder} needs a FILE; {which} is a path, and its document names its spool.")
    control = connect(server)
    try:
        content = control.document(which)
    except ApiRefused as error:
        if error.http_status == 404:
            raise NotFound(
                f"PATH|FILE {which!r} is neither a file nor a subscription at {server}; see `tape subscriptions list`."
            ) from error
        if error.http_status in (401, 403):
            raise ApiRefused(
                f"{server} rejected the request: {error} Set {TOKEN_VARIABLE} to the internal token.", error.http_status
            ) from error
        raise
    except ServerUnreachable as error:
        raise ServerUnreachable(f"{error} Is `tape serve` running there? Name another server with --server.") from error
    return parse_subscription(content, which), control


def _credential(subscription: Subscription, control: Control | None) -> Any:
    spool = subscription.spec.spool
    if not spool.credential or control is None:
        return None
    alias = name_within(tenant_of(subscription.path), spool.credential)
    return control.credential(alias, spool_hosts(spool))


def _emitter(control: Control | None) -> Callable[[Sequence[SubscriptionEvent]], Awaitable[None]]:
    async def emit(events: Sequence[SubscriptionEvent]) -> None:
        if control is not None:
            control.post_events(events)

    return emit


async def _dispatch_nothing(plans: Sequence[Any]) -> list[Any]:
    raise AssertionError("nothing is dispatched here")
