"""`tape verify`: verify the hash chain of the journal."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from tape.cli import archive
from tape.cli.options import DEFAULT_STORE, Output, OutputOption, StoreOption, run
from tape.cli.progress import bar
from tape.errors import InvalidInput
from tape.journal.verifier import VerifyReport
from tape.journal.verifier import verify as verify_journal
from tape.store import open_database

MAX_SHOWN = 100


def verify(
    store: StoreOption = DEFAULT_STORE,
    lake: Annotated[
        str, typer.Option("--archive", "--lake", help="Verify this archive against the journal instead.")
    ] = "",
    repair: Annotated[bool, typer.Option(help="With --archive: rebuild damaged files from the journal.")] = False,
    output: OutputOption = Output.text,
) -> None:
    """Verify every entry against the hash chain, and list altered, missing and unreadable entries.

    Exits with 1 if there are any. The server may keep running.
    """
    if lake:
        archive.verify(lake, store, output, repair=repair)
        return
    if repair:
        raise InvalidInput(
            "--repair needs --archive: an archive is rebuilt from the journal, the journal from a backup."
        )
    report = run(_verify(store))
    if output is Output.json:
        typer.echo(msgspec.json.encode({"ok": report.ok, **msgspec.to_builtins(report)}).decode())
    else:
        _show(report)
    if not report.ok:
        raise typer.Exit(1)


async def _verify(store: str) -> VerifyReport:
    async with open_database(store, migrate=False) as database:
        with bar("Verifying") as progress:
            return await database.read(lambda reader: verify_journal(reader, progress))


def _show(report: VerifyReport) -> None:
    console = Console()
    extent = f"{report.entries:,} entries ({report.oldest} to {report.head})"
    if report.ok:
        console.print(f"[green]✓[/green] {extent} are exactly what was written.")
        return
    table = Table("global_seq", "problem", "detail")
    for finding in report.findings[:MAX_SHOWN]:
        table.add_row(str(finding.global_seq), finding.problem, finding.detail)
    console.print(table)
    if len(report.findings) > MAX_SHOWN:
        console.print(f"… and {len(report.findings) - MAX_SHOWN:,} more; --output json lists all of them.")
    console.print(
        f"[red]✗[/red] {extent}: {len(report.findings):,} problems. Restore the affected range from a backup."
    )
