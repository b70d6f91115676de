"""`tape tail`: print entries as they are appended."""

from __future__ import annotations

import datetime as dt
import sys
import zlib
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from tape.cli.options import DEFAULT_URL, Output, OutputOption, UrlOption, check_predicate, run
from tape.client import AsyncTapeClient
from tape.client.aio import to_entry
from tape.client.gap import Gap, to_gap
from tape.errors import InvalidInput
from tape.model.entry import Entry

if TYPE_CHECKING:
    from tape.client.stream import Event

_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green", "bright_magenta")


def tail(
    subject: Annotated[
        str, typer.Option("--subject", "-s", help="Only subjects that match this pattern, e.g. /tape/effect/**")
    ] = "",
    start: Annotated[
        str,
        typer.Option(
            "--from", help="Start after this global_seq; 'start' is the oldest entry, 'now' prints only new entries."
        ),
    ] = "now",
    where: Annotated[str, typer.Option("--where", "-w", help="Only entries that match this CEL predicate.")] = "",
    run_id: Annotated[str, typer.Option("--run", help="Only entries of this run.")] = "",
    kind: Annotated[str, typer.Option(help="Only entries of this kind.")] = "",
    count: Annotated[int, typer.Option("--count", "-n", help="Exit after this many entries; 0 is no limit.")] = 0,
    follow: Annotated[bool, typer.Option(help="Wait for new entries at the end of the journal.")] = True,
    url: UrlOption = DEFAULT_URL,
    http: Annotated[
        str, typer.Option(help="Read the HTTP stream of this server instead, e.g. http://127.0.0.1:7879.")
    ] = "",
    tenant: Annotated[str, typer.Option(help="With --http on a server without tokens: tenant.")] = "",
    user: Annotated[str, typer.Option(help="With --http on a server without tokens: user.")] = "",
    session: Annotated[str, typer.Option(help="With --http: session.")] = "",
    admin: Annotated[
        bool, typer.Option("--admin", help="With --http: entries of all identities; needs a scope.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compute the chain and name entries that do not fit. Needs every entry.")
    ] = False,
    output: OutputOption = Output.text,
) -> None:
    """Print entries as they are appended. Reconnects automatically and prints each entry once.

    A line names entries that are damaged, missing or lost.
    """
    if http:
        for name, value in (
            ("--subject", subject),
            ("--where", where),
            ("--kind", kind),
            ("--no-follow", not follow),
            ("--verify", verify),
        ):
            if value:
                raise InvalidInput(f"{name} cannot be used with --http; leave it out, or use --url.")
        identity = {"tenant": tenant, "user": user, "session": session, "run": run_id, "admin": admin}
        run(_tail_http(http, _position(start), identity, count, output))
        return
    check_predicate(where)
    wanted = {
        "subject_pattern": subject,
        "from_global_seq": _position(start),
        "run_id": run_id,
        "kind": kind,
        "predicate_cel": where,
        "verify": verify,
    }
    run(_tail(url, wanted, count, follow, output))


async def _tail(url: str, wanted: dict[str, Any], count: int, follow: bool, output: Output) -> None:
    painter = _Painter()
    show = _show_json if output is Output.json else painter.show
    show_gap = _show_json_gap if output is Output.json else painter.show_gap
    shown = 0
    async with AsyncTapeClient(url) as client:
        head = await client.head()  # fails at once if the server is not reachable
        async for batch in client.follow_batches(**wanted, skip_gaps=True, on_gap=_ignore):
            gaps = [to_gap(gap) for gap in batch.gaps]
            for event in batch.entries:
                while gaps and gaps[0].first < event.global_seq:
                    show_gap(gaps.pop(0))
                show(to_entry(event))
                shown += 1
                if shown == count:
                    return
            for gap in gaps:
                show_gap(gap)
            sys.stdout.flush()
            if not follow and batch.position >= head.global_seq:
                return


async def _tail_http(url: str, after: int, identity: dict[str, Any], count: int, output: Output) -> None:
    from tape.client.stream import stream  # the HTTP client, which the gRPC stream does without

    painter = _Painter()
    show = painter.show
    shown = 0

    def show_gap(gap: Gap) -> None:
        (_show_json_gap if output is Output.json else painter.show_gap)(gap)
        sys.stdout.flush()

    async for event in stream(url, after=None if after < 0 else after, on_gap=show_gap, **identity):
        if output is Output.json:
            sys.stdout.write(msgspec.json.encode(event).decode() + "\n")
        else:
            show(_as_entry(event))
        sys.stdout.flush()
        shown += 1
        if shown == count:
            return


def _as_entry(event: Event) -> Entry:
    moment = dt.datetime.fromisoformat(event.occurred_at[:23] + "+00:00")
    kind = event.type.partition(".")[0]
    payload = msgspec.json.encode(event.payload).decode()
    return Entry(
        event.sequence,
        event.run,
        0,
        kind,
        event.extra["subject"],
        payload,
        int(event.extra["schema_version"]),
        event.extra.get("trace_id", ""),
        event.extra.get("span_id", ""),
        "",
        round(moment.timestamp() * 1000),
        event.tenant,
        event.user,
        event.session,
        b"",
    )


def _position(text: str) -> int:
    if text in ("now", "start"):
        return {"now": -1, "start": 0}[text]
    if not text.isdecimal():
        raise InvalidInput(f"--from {text!r} must be a global_seq, 'start' or 'now'.")
    return int(text)


def _show_json(entry: Entry) -> None:
    fields = msgspec.structs.asdict(entry)
    fields["chain"] = entry.chain.hex()
    del fields["payload_json"]
    fields["payload"] = msgspec.Raw(entry.payload_json.encode())
    sys.stdout.write(msgspec.json.encode(fields).decode() + "\n")


def _show_json_gap(gap: Gap) -> None:
    sys.stdout.write(msgspec.json.encode({"gap": gap}).decode() + "\n")


def _ignore(gap: Gap) -> None:
    """The gaps of a batch are printed among its entries."""


class _Painter:
    """Prints one coloured line per entry; a payload too long for the terminal is cut."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)

    def show(self, entry: Entry) -> None:
        when = dt.datetime.fromtimestamp(entry.ts_ms / 1000).astimezone()
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append(f"{entry.global_seq:>8} ", "bold")
        line.append(f"{when:%H:%M:%S}.{entry.ts_ms % 1000:03d} ", "dim")
        line.append(f"{entry.subject} ", _COLOURS[zlib.crc32(entry.kind.encode()) % len(_COLOURS)])
        line.append(" ".join(entry.payload_json.split()))
        self._console.print(line, soft_wrap=not self._console.is_terminal)

    def show_gap(self, gap: Gap) -> None:
        """Print what is missing, on a line of its own."""
        numbers = f"{gap.first}" if gap.first == gap.last else f"{gap.first} to {gap.last}"
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append(f"{gap.first:>8} " if gap.first else "         ", "bold red")
        line.append(f"gap: {numbers + ' ' if gap.first else ''}{gap.reason}", "red")
        line.append(f" ({gap.detail})" if gap.detail else "", "dim")
        self._console.print(line, soft_wrap=not self._console.is_terminal)
