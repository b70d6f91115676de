"""The archive of `tape verify --archive` and `tape prune --archived`: verify and repair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import typer

from tape.base.config import load_pipeline_settings
from tape.cli.expectation import Expectation
from tape.cli.options import Output
from tape.cli.progress import bar
from tape.errors import ArchiveDamaged, MissingExtra
from tape.journal.findings import Finding
from tape.journal.verifier import VerifyContext

if TYPE_CHECKING:
    from tape.pipeline.archive_repair import ArchiveRepair
    from tape.pipeline.archive_verifier import ArchiveReport

MAX_SHOWN = 100
QUARANTINE = "_quarantine"


def verify(
    lake: str, store: str, output: Output, *, repair: bool = False, expectations: Sequence[Expectation] = ()
) -> None:
    """Verify an archive, and repair it on request. Exits with 1 if damage remains."""
    report = _verify(lake, store)
    report.findings += [finding for each in expectations for finding in _compare(lake, store, each)]
    repaired = None if report.ok or not repair else _repair(lake, store, report)
    extent = f"{report.entries:,} archived entries ({report.oldest} to {report.until}) in {report.files} files"
    if output is Output.json:
        outcome = {"ok": report.ok or repaired is not None, "repaired": msgspec.to_builtins(repaired)}
        typer.echo(msgspec.json.encode({**outcome, **msgspec.to_builtins(report)}).decode())
    elif report.ok:
        typer.echo(f"✓ {extent} are exactly what was written.")
        for each in expectations:
            typer.echo(f"✓ entry {each.global_seq} is the one that {each.source} names.")
            if each.meaning:
                typer.echo(f"  It is {each.meaning}.")
    else:
        _show(report, extent)
        if repaired is not None:
            typer.echo(
                f"✓ {repaired.entries:,} entries were rebuilt from the journal, and the archive was verified again."
            )
            for path in repaired.replaced:
                typer.echo(f"  replaced {path}; the damaged file is in {QUARANTINE}")
    if not report.ok and repaired is None:
        raise typer.Exit(1)


def _compare(lake: str, store: str, expected: Expectation) -> list[Finding]:
    """What is wrong with an expected entry: in the journal, or in the archive if it is pruned."""
    from tape.archive.table import ArchiveTable
    from tape.pipeline.journal_reader import query_store

    context = VerifyContext(0, 0, b"", ())
    found = query_store(store, lambda reader: [each for check in expected.checks for each in check(reader, context)])
    if not any(finding.problem == "unproven" for finding in found):
        return found
    archived = ArchiveTable.open(lake, _options()).chain_at(expected.global_seq)
    return [each for each in found if each.problem != "unproven"] + expected.compare(archived)


def _show(report: ArchiveReport, extent: str) -> None:
    problems = [
        *report.damaged.values(),
        *(f"{one.global_seq}: {one.problem}, {one.detail}" for one in report.findings),
    ]
    for line in problems[:MAX_SHOWN]:
        typer.echo(line)
    if len(problems) > MAX_SHOWN:
        typer.echo(f"… and {len(problems) - MAX_SHOWN:,} more; --output json lists all of them.")
    typer.echo(f"✗ {extent}: {len(problems):,} problems.")


def proven_until(lake: str, store: str) -> int:
    """The last archived entry, after verifying the archive. Raises ArchiveDamaged."""
    report = _verify(lake, store)
    if not report.ok:
        raise ArchiveDamaged(f"The archive is damaged, so nothing is pruned. See: tape verify --archive {lake}")
    return report.until


def _repair(lake: str, store: str, report: ArchiveReport) -> ArchiveRepair:
    from tape.archive.table import ArchiveTable
    from tape.pipeline.archive_repair import repair_archive

    with bar("Repairing the archive") as progress:
        return repair_archive(ArchiveTable.open(lake, _options()), store, report, progress)


def _options() -> dict[str, str]:
    return dict(load_pipeline_settings().lake_options)


def _verify(lake: str, store: str) -> ArchiveReport:
    try:
        from tape.archive.table import ArchiveTable
        from tape.pipeline.archive_verifier import verify_archive
    except ImportError as missing:
        raise MissingExtra("An archive", "lake") from missing
    with bar("Verifying the archive") as progress:
        return verify_archive(ArchiveTable.open(lake, _options()), store, progress)
