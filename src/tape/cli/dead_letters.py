"""`tape dead-letters`: list, show, redrive and drop dead letters of every origin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from tape.base.clock import now_ms
from tape.cli.dead_letter_files import MAX_FILE_ITEMS, PREVIEW_BYTES, find_in_files, read_rejects, read_relay_file
from tape.cli.options import DEFAULT_URL, Output, OutputOption, UrlOption, YesOption, run
from tape.cli.output import age, as_dict, cut, moment, parse_age, print_facts, print_json, print_table
from tape.client import AsyncTapeClient
from tape.errors import InvalidInput
from tape.proto import tape_pb2 as pb

app = typer.Typer(help="List, show, redrive and drop dead letters of every origin.", no_args_is_help=True)

ORIGINS = "task, message, spool, quarantine or relay"

IdsArgument = Annotated[list[str] | None, typer.Argument(help="Ids, as `list` shows them.", metavar="[ID]...")]
OriginOption = Annotated[
    list[str] | None, typer.Option("--origin", help=f"Only of this origin: {ORIGINS}; repeatable.")
]
SubscriptionOption = Annotated[str, typer.Option("--subscription", "-s", help="Only of this subscription.")]
ReactionOption = Annotated[str, typer.Option("--reaction", "-r", help="Only of this reaction.")]
SinceOption = Annotated[str, typer.Option("--since", help="Only those of the last 90s, 10m, 2h, 7d.")]
ErrorOption = Annotated[str, typer.Option("--error", help="Only those whose reason contains this text.")]
AllOption = Annotated[bool, typer.Option("--all", help="All dead letters that the server reaches.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show which, and what would be done.")]
LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of dead letters.")]
FileOption = Annotated[
    Path | None, typer.Option("--file", help="File of a relay on this machine, instead of the server.")
]
RejectsOption = Annotated[
    str, typer.Option("--rejects", help="Folder or bucket with rejected rows of an ingest, instead of the server.")
]

Settle = Callable[[AsyncTapeClient, str, int], Awaitable[pb.SettleDeadLettersResponse]]


@app.command("list")
def list_dead_letters(
    origin: OriginOption = None,
    subscription: SubscriptionOption = "",
    reaction: ReactionOption = "",
    since: SinceOption = "",
    error: ErrorOption = "",
    group: Annotated[bool, typer.Option("--group", help="Counts by origin, name and error.")] = False,
    limit: LimitOption = 50,
    cursor: Annotated[str, typer.Option(help="Cursor of the next page, as printed by the page before.")] = "",
    file: FileOption = None,
    rejects: RejectsOption = "",
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """List dead letters by origin, the newest first (those of spools oldest first), or count them by error."""
    wanted = _filter(origin, subscription, reaction, since, error)
    if file is not None or rejects:
        found = _from_files(file, rejects, wanted, group, limit)
    else:
        found = run(_list(url, wanted, cursor, limit, group))
    if output is Output.json:
        print_json(as_dict(found))
        return
    now = now_ms()
    if group:
        print_table(
            ("count", "origin", "name", "error", "last", "sample"),
            (
                (str(each.count), each.origin, each.name, cut(each.error), _ago(now, each.last_ms), each.sample_id)
                for each in found.groups
            ),
            nothing="No dead letters found.",
        )
    else:
        print_table(
            ("id", "name", "when", "attempts", "bytes", "reason"),
            (
                (
                    each.id,
                    each.subscription or each.reaction_id or each.subject,
                    _ago(now, each.dead_at_ms),
                    str(each.attempts),
                    str(each.size_bytes),
                    cut(each.reason),
                )
                for each in found.dead_letters
            ),
            nothing="No dead letters found.",
        )
    if found.next_cursor:
        typer.echo(f"More may follow: --cursor '{found.next_cursor}'", err=True)
    _print_unreachable(found.unreachable)


async def _list(
    url: str, wanted: pb.DeadLetterFilter, cursor: str, limit: int, group: bool
) -> pb.ListDeadLettersResponse:
    """Pages of the server until there are enough: one page can be empty."""
    found = pb.ListDeadLettersResponse(next_cursor=cursor)
    async with AsyncTapeClient(url) as client:
        while True:
            page = await client.list_dead_letters(
                filter=wanted, cursor=found.next_cursor, limit=min(limit - len(found.dead_letters), 1_000), group=group
            )
            found.next_cursor = ""
            found.MergeFrom(page)
            if not page.next_cursor or group or len(found.dead_letters) >= limit:
                return found


@app.command("show")
def show_dead_letter(
    dead_letter_id: Annotated[str, typer.Argument(help="Id, as `list` shows it.", metavar="ID")],
    file: FileOption = None,
    rejects: RejectsOption = "",
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """Show one dead letter: its reason, what a redrive would do, and up to 64 KiB of its payload."""
    if file is not None or rejects:
        found = find_in_files(_read_files(file, rejects), dead_letter_id)
    else:
        found = run(_show(url, dead_letter_id))
    if output is Output.json:
        print_json(as_dict(found))
        return
    facts = {
        "id": found.id,
        "subscription": found.subscription,
        "reaction": found.reaction_id,
        "subject": found.subject,
        "message": found.message_id,
        "ordering key": found.ordering_key,
        "when": moment(found.dead_at_ms) if found.dead_at_ms else "",
        "reason": found.reason,
        "attempts": str(found.attempts),
        "bytes": str(found.size_bytes),
        "redrive": found.redrive,
        "payload": found.preview + (" …" if found.is_truncated else ""),
    }
    print_facts({name: fact for name, fact in facts.items() if fact})


async def _show(url: str, dead_letter_id: str) -> pb.DeadLetter:
    async with AsyncTapeClient(url) as client:
        return await client.get_dead_letter(dead_letter_id)


@app.command("redrive")
def redrive_dead_letters(
    ids: IdsArgument = None,
    origin: OriginOption = None,
    subscription: SubscriptionOption = "",
    reaction: ReactionOption = "",
    since: SinceOption = "",
    error: ErrorOption = "",
    everything: AllOption = False,
    dry_run: DryRunOption = False,
    limit: LimitOption = 1_000,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """Bring dead letters back as they were: same message, same id, same ordering key.

    Exits with 1 if some of them cannot be redriven; they stay dead letters.
    """
    wanted = _filter(origin, subscription, reaction, since, error)
    _check_choice(ids, wanted, everything)

    async def step(client: AsyncTapeClient, cursor: str, most: int) -> pb.SettleDeadLettersResponse:
        return await client.redrive_dead_letters(
            ids=ids or (),
            filter=wanted,
            everything=everything,
            limit=most,
            dry_run=dry_run,
            cursor=cursor,
        )

    _report(run(_repeat(url, step, limit)), "redriven", dry_run, output)


@app.command("drop")
def drop_dead_letters(
    ids: IdsArgument = None,
    origin: OriginOption = None,
    subscription: SubscriptionOption = "",
    reaction: ReactionOption = "",
    since: SinceOption = "",
    error: ErrorOption = "",
    everything: AllOption = False,
    reason: Annotated[str, typer.Option(help="Reason, for the audit entry.")] = "",
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    limit: LimitOption = 1_000,
    url: UrlOption = DEFAULT_URL,
    output: OutputOption = Output.text,
) -> None:
    """Give dead letters up for good. Exits with 1 if some of them cannot be dropped."""
    wanted = _filter(origin, subscription, reaction, since, error)
    _check_choice(ids, wanted, everything)
    if not (dry_run or yes or ids):
        typer.confirm("Drop these dead letters for good? --dry-run shows them.", abort=True)

    async def step(client: AsyncTapeClient, cursor: str, most: int) -> pb.SettleDeadLettersResponse:
        return await client.drop_dead_letters(
            ids=ids or (),
            filter=wanted,
            everything=everything,
            limit=most,
            dry_run=dry_run,
            cursor=cursor,
            reason=reason,
        )

    _report(run(_repeat(url, step, limit)), "dropped", dry_run, output)


async def _repeat(url: str, step: Settle, limit: int) -> pb.SettleDeadLettersResponse:
    """Repeat until there are no more, or enough: the server settles 1,000 per request at most."""
    total = pb.SettleDeadLettersResponse()
    async with AsyncTapeClient(url) as client:
        while True:
            answer = await step(client, total.next_cursor, min(limit - len(total.ids) - len(total.failures), 1_000))
            total.next_cursor = ""
            total.MergeFrom(answer)
            if not answer.next_cursor or len(total.ids) + len(total.failures) >= limit:
                return total


def _report(settled: pb.SettleDeadLettersResponse, what: str, dry_run: bool, output: Output) -> None:
    refused = {each.id for each in settled.failures}
    done = [each for each in settled.ids if each not in refused]
    if output is Output.json:
        print_json({what: done, "failures": [as_dict(each) for each in settled.failures], "dry_run": dry_run})
    else:
        if dry_run:
            for each in done:
                typer.echo(each)
        would = "would be " if dry_run else ""
        plural = "" if len(done) == 1 else "s"
        typer.echo(f"{len(done)} dead letter{plural} {would}{what}.")
        for failure in settled.failures:
            typer.echo(f"{failure.id}: {failure.reason}", err=True)
        if settled.next_cursor:
            typer.echo("More may follow: repeat the command, or raise --limit.", err=True)
        _print_unreachable(settled.unreachable)
    if settled.failures:
        raise typer.Exit(1)


def _filter(origins: list[str] | None, subscription: str, reaction: str, since: str, error: str) -> pb.DeadLetterFilter:
    return pb.DeadLetterFilter(
        origins=origins or [],
        subscription=subscription,
        reaction_id=reaction,
        since_ms=now_ms() - parse_age("--since", since) if since else 0,
        error_contains=error,
    )


def _check_choice(ids: Sequence[str] | None, wanted: pb.DeadLetterFilter, everything: bool) -> None:
    if sum((bool(ids), wanted.ByteSize() > 0, everything)) != 1:
        raise InvalidInput(
            "Name the dead letters: by id, by --origin, --subscription, --reaction, --since or --error, or with --all."
        )


def _read_files(file: Path | None, rejects: str) -> Iterator[pb.DeadLetter]:
    if file is not None and rejects:
        raise InvalidInput("--file and --rejects are two locations; name one.")
    return read_relay_file(file) if file is not None else read_rejects(rejects)


def _from_files(
    file: Path | None, rejects: str, wanted: pb.DeadLetterFilter, group: bool, limit: int
) -> pb.ListDeadLettersResponse:
    found = [
        each
        for each in islice(_read_files(file, rejects), MAX_FILE_ITEMS)
        if wanted.error_contains in each.reason and each.dead_at_ms >= wanted.since_ms
    ]
    answer = pb.ListDeadLettersResponse()
    if group:
        for (origin, error), count in Counter((each.origin, each.reason) for each in found).most_common():
            answer.groups.add(origin=origin, name=rejects or str(file), error=error, count=count)
        return answer
    for each in found[:limit]:
        each.is_truncated = len(each.preview) > PREVIEW_BYTES
        each.preview = each.preview[:PREVIEW_BYTES]
        answer.dead_letters.append(each)
    return answer


def _ago(now: int, at_ms: int) -> str:
    return f"{age(now - at_ms)} ago" if at_ms else ""


def _print_unreachable(found: Any) -> None:
    for each in found:
        typer.echo(f"not reached ({each.origin}, {each.name}): {each.reason}", err=True)
