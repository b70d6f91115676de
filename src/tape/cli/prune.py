"""`tape prune`: remove the oldest entries."""

from __future__ import annotations

import datetime as dt
import re
from typing import Annotated

import msgspec
import typer

from tape.base.clock import now_ms
from tape.cli import archive
from tape.cli.options import DEFAULT_STORE, Output, OutputOption, StoreOption, YesOption, run
from tape.cli.progress import bar
from tape.errors import InvalidInput
from tape.journal.appender import read_head
from tape.journal.epochs import read_holes
from tape.journal.reader import position_before
from tape.journal.retention import prune as prune_journal
from tape.store import Database, open_database

_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def prune(
    before: Annotated[
        str,
        typer.Option(
            help="First entry to keep: a global_seq, a time (2026-01-31, 2026-01-31T12:00Z) or an age (90d, 12h)."
        ),
    ],
    archived: Annotated[
        str, typer.Option(help="Remove only entries that this archive holds, after verifying the archive.")
    ] = "",
    dry_run: Annotated[bool, typer.Option(help="Show what would be removed, and remove nothing.")] = False,
    yes: YesOption = False,
    store: StoreOption = DEFAULT_STORE,
    output: OutputOption = Output.text,
) -> None:
    """Remove the oldest entries permanently. The rest stays verifiable, and the removal is recorded in the journal."""
    before_seq, before_ms = parse_before(before, now_ms())
    limit = archive.proven_until(archived, store) + 1 if archived else None
    run(_prune(store, before_seq, before_ms, limit, dry_run, yes, output))


async def _prune(
    store: str,
    before_seq: int | None,
    before_ms: int | None,
    limit: int | None,
    dry_run: bool,
    yes: bool,
    output: Output,
) -> None:
    async with open_database(store, migrate=False, create=False) as database:
        first_kept, count = await _extent(database, before_seq, before_ms, limit)
        if count and not dry_run and not yes:
            typer.confirm(f"Remove {count:,} entries below {first_kept} from {store}?", abort=True, err=True)
        if not dry_run:
            with bar("Pruning") as progress:
                count = await prune_journal(database, before_seq=first_kept, progress=progress)
    if output is Output.json:
        typer.echo(msgspec.json.encode({"removed": count, "oldest": first_kept, "dry_run": dry_run}).decode())
    else:
        typer.echo(f"{'Would remove' if dry_run else 'Removed'} {count:,} entries; the oldest is now {first_kept}.")


async def _extent(
    database: Database, before_seq: int | None, before_ms: int | None, limit: int | None
) -> tuple[int, int]:
    """The first entry to keep, and the number of entries to remove."""
    head = await database.read(read_head)
    if before_ms is not None:
        moment = before_ms
        before_seq = await database.read(lambda reader: position_before(reader, moment)) + 1
    if limit is not None:
        before_seq = min(before_seq or 0, limit)
    holes = await database.read(lambda reader: read_holes(reader, head))
    first_kept = holes.next_number(max(before_seq or 0, head.oldest))
    return first_kept, first_kept - head.oldest - holes.count(head.oldest, first_kept - 1)


def parse_before(text: str, now_ms: int) -> tuple[int | None, int | None]:
    """A global_seq, or a time in ms."""
    if text.isdecimal():
        return int(text), None
    if age := re.fullmatch(r"(\d+)([smhdw])", text):
        return None, now_ms - int(age[1]) * _UNITS_MS[age[2]]
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            f"--before {text!r} is neither a global_seq, nor a date or time such as 2026-01-31T12:00Z,"
            " nor an age such as 90d, 12h, 30m."
        ) from None
    return None, int(moment.astimezone().timestamp() * 1000)
