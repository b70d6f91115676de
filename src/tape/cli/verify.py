"""`tape verify`: verify the hash chain and the indexes of the journal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tape.archive import open_archive
from tape.base.config import load_pipeline_settings
from tape.base.url_mask import mask_urls
from tape.cli import archive
from tape.cli.expectation import Expectation, load_checkpoint, parse_expect
from tape.cli.options import DEFAULT_STORE, Output, OutputOption, StoreOption
from tape.cli.progress import bar
from tape.errors import (
    ArchiveDamaged,
    ArchiveUnreachable,
    InvalidInput,
    MissingExtra,
    RestoreUnfinished,
    SchemaOutdated,
    StoreBusy,
    StoreDamaged,
    StoreFull,
    StoreUnavailable,
)
from tape.journal.appender import read_head
from tape.journal.epochs import read_holes
from tape.journal.findings import Finding, VerifyReport
from tape.journal.index_check import rebuild_indexes
from tape.journal.proofs import OWN_CHECKS, find_lost_tail
from tape.journal.salvage import describe
from tape.journal.verifier import Check, VerifyContext
from tape.journal.verifier import verify as verify_journal
from tape.store import Database, Reader, open_database
from tape.store.migrations import known_migrations, pending_migrations
from tape.store.reconnection import ReconnectingReader

MAX_SHOWN = 100
MAX_RANGES = 10
# The store cannot be reached: neither proven nor damaged.
UNAVAILABLE_EXIT = 3


def verify(
    store: StoreOption = DEFAULT_STORE,
    lake: Annotated[
        str, typer.Option("--archive", "--lake", help="Verify this archive against the journal instead.")
    ] = "",
    repair: Annotated[bool, typer.Option(help="With --archive: rebuild damaged files from the journal.")] = False,
    repair_indexes: Annotated[
        bool, typer.Option("--repair-indexes", help="Rebuild the indexes of the journal first. Writes wait meanwhile.")
    ] = False,
    expect: Annotated[
        list[str] | None,
        typer.Option(metavar="SEQ:CHAIN", help="Entry that must be there with this chain value, in hex; repeatable."),
    ] = None,
    checkpoint: Annotated[
        list[Path] | None, typer.Option(help="Checkpoint of tape checkpoint that must hold; repeatable.")
    ] = None,
    public_key: Annotated[
        Path | None, typer.Option(help="Key that checkpoints must be signed with, in PEM. [default: the one in them]")
    ] = None,
    output: OutputOption = Output.text,
) -> None:
    """Verify every entry against the hash chain and the indexes, and list what is wrong as ranges of entries.

    Exits with 0 if everything is proven, with 1 if there is any problem, and with 3 if the store is unavailable. The
    server may keep running. The end of the journal is compared with the witness, and with what --expect and
    --checkpoint name; with --archive, pruned entries of theirs are looked for in the archive.
    """
    if lake and repair_indexes:
        raise InvalidInput("--repair-indexes is for the journal; an archive has none. Use --repair.")
    expectations = [*map(parse_expect, expect or ()), *(load_checkpoint(path, public_key) for path in checkpoint or ())]
    if public_key is not None and not checkpoint:
        raise InvalidInput("--public-key needs --checkpoint.")
    if lake:
        archive.verify(lake, store, output, repair=repair, expectations=expectations)
        return
    if repair:
        raise InvalidInput(
            "--repair needs --archive: an archive is rebuilt from the journal, the journal from a backup."
        )
    try:
        database = open_database(store, migrate=False, create=False)
        if repair_indexes:
            rebuild_indexes(database)
        report, lost = _verify(database, expectations), _named_ranges(database)
    except (StoreUnavailable, StoreBusy, StoreFull) as error:
        typer.secho(f"error {error.code}: ", fg="red", bold=True, err=True, nl=False)
        typer.echo(f"{mask_urls(str(error))} Nothing was verified.", err=True)
        raise typer.Exit(UNAVAILABLE_EXIT) from error
    if output is Output.json:
        shown = {"ok": report.ok, **msgspec.to_builtins(report)}
        if not report.omitted:
            del shown["omitted"]
        if lost:
            shown["lost"] = [{"first": each.start, "last": each.stop - 1} for each in lost]
        typer.echo(msgspec.json.encode(shown).decode())
    else:
        _show(report, expectations, lost)
    if not report.ok:
        raise typer.Exit(1)


def _verify(database: Database, expectations: Sequence[Expectation] = ()) -> VerifyReport:
    try:
        reader = ReconnectingReader(lambda: database.connect(read_only=True))
    except StoreDamaged as error:
        return VerifyReport(0, 0, findings=[Finding(0, "unreadable", str(error))])
    with reader:
        problems = _check_schema(database)
        with bar("Verifying") as progress:
            checks = [check for expectation in expectations for check in expectation.checks]
            report = verify_journal(reader, progress, [*OWN_CHECKS, _witness_check(database), check_archive, *checks])
    report.findings[:0] = problems
    return report


def _named_ranges(database: Database) -> list[range]:
    """The numbers that have no entry because the database lost it, which the journal says itself."""
    try:
        connection = database.connect(read_only=True)
        try:
            return list(read_holes(connection, read_head(connection)))
        finally:
            connection.close()
    except (StoreUnavailable, StoreBusy, StoreFull):
        raise
    except Exception:  # of damaged rows, which are findings already
        return []


def _witness_check(database: Database) -> Check:
    """A check of the end of the journal against the witness."""

    def check_witness(reader: Reader, context: VerifyContext) -> Iterable[Finding]:
        journal_id = read_head(reader).journal_id
        known = database.witness.last_known(journal_id)
        if known is not None:
            yield from find_lost_tail(known, f"the witness {database.witness.name}")(reader, context)
        for other in database.witness.find_other_journals(journal_id):
            detail = (
                f"the witness {database.witness.name} is of the journal {other.journal_id}, which had entry"
                f" {other.global_seq}; this is the journal {journal_id!r:.40}"
            )
            yield Finding(other.global_seq, "tail", detail)

    return check_witness


def check_archive(reader: Reader, context: VerifyContext) -> Iterable[Finding]:
    """A journal that ends before the archive of the settings (`lake`, TAPE_LAKE), if that is its archive."""
    settings = load_pipeline_settings()
    if not settings.lake:
        return
    head = read_head(reader)
    try:
        tail = open_archive(settings.lake, dict(settings.lake_options)).newer_tail(head)
    except (ArchiveDamaged, ArchiveUnreachable, MissingExtra) as error:
        typer.echo(f"warning: the end of the journal is not compared with the archive: {error}", err=True)
        return
    if tail is not None:
        yield from find_lost_tail(tail, f"the archive {mask_urls(settings.lake)}")(reader, context)


def _check_schema(database: Database) -> list[Finding]:
    """A journal of an older version is refused; one whose migrations cannot be read is walked all the same."""
    try:
        connection = database.connect(read_only=True)
        try:
            pending = pending_migrations(connection)
        finally:
            connection.close()
    except (StoreUnavailable, StoreBusy, StoreFull, RestoreUnfinished):
        raise
    except Exception as error:
        return [Finding(0, "schema", f"the list of migrations is not what was written: {describe(error)}")]
    if not pending:
        return []
    known = known_migrations(database.dialect)
    if len(pending) == len(known):
        raise database.without_tables()
    names, newest = ", ".join(map(str, pending)), known[-1].number
    if len(pending) <= newest - pending[0].number and pending[-1].number != newest:
        return [Finding(0, "schema", f"the list of migrations lacks {names}")]
    url = mask_urls(database.url)
    raise SchemaOutdated(f"The database {url} lacks {names}. Run: tape migrate --store {url}")


def _show(report: VerifyReport, expectations: Sequence[Expectation], lost: Sequence[range]) -> None:
    console = Console()
    extent = f"{report.entries:,} entries ({report.oldest} to {report.head})"
    if report.ok:
        console.print(f"[green]✓[/green] {extent} are exactly what was written.")
        if lost:
            shown = ", ".join(f"{each.start} to {each.stop - 1}" for each in lost[:MAX_RANGES])
            more = f" and {len(lost) - MAX_RANGES:,} more ranges" if len(lost) > MAX_RANGES else ""
            console.print(
                f"  Without entries: {shown}{more}. The database lost what had these numbers; none is given out again."
                " `tape info` says when and why."
            )
        for each in expectations:
            console.print(f"[green]✓[/green] entry {each.global_seq} is the one that {escape(each.source)} names.")
            if each.meaning:
                console.print(f"  It is {each.meaning}.")
        return
    table = Table("global_seq", "problem", "detail")
    for finding in report.findings[:MAX_SHOWN]:
        table.add_row(finding.numbers, finding.problem, escape(_printable(finding.detail)))
    console.print(table)
    if len(report.findings) > MAX_SHOWN:
        console.print(f"… and {report.problems - MAX_SHOWN:,} more; --output json lists {len(report.findings):,}.")
    problems = "1 problem" if report.problems == 1 else f"{report.problems:,} problems"
    console.print(f"[red]✗[/red] {extent}: {problems}. {_remedy({each.problem for each in report.findings})}")


def _remedy(problems: set[str]) -> str:
    """What to do next."""
    if problems == {"tail"}:
        return (
            "`tape info` says how far the last backup goes. `tape serve --accept-loss` goes on without what is gone;"
            " `tape restore BACKUP --store NEW` brings a backup back."
        )
    if problems == {"index"}:
        return "No entry is damaged: `tape verify --repair-indexes` rebuilds the indexes."
    return (
        "The server goes on and names these to its readers. `tape restore BACKUP --store NEW` brings back what a backup"
        " has of them, into a new store."
    )


def _printable(text: str) -> str:
    """The text without control characters: it may quote damaged bytes."""
    return "".join(character if character.isprintable() else "�" for character in text)
