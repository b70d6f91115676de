"""What `tape verify --lake` and `tape prune --archived` need of an archive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import typer

from tape.cli.options import Output
from tape.cli.progress import bar
from tape.errors import ArchiveDamaged, MissingExtra

if TYPE_CHECKING:
    from tape.pipeline.proving import LakeReport


def verify(lake: str, store: str, output: Output) -> None:
    """Prove an archive; exits with 1 if anything is wrong."""
    report = _prove(lake, store)
    extent = f"{report.entries:,} archived entries ({report.oldest} to {report.until}) in {report.files} files"
    if output is Output.json:
        typer.echo(msgspec.json.encode({"ok": report.ok, **msgspec.to_builtins(report)}).decode())
    elif report.ok:
        typer.echo(f"✓ {extent} are exactly what was written.")
    else:
        for line in (*report.damaged, *(f"{one.global_seq}: {one.problem}, {one.detail}" for one in report.findings)):
            typer.echo(line)
        typer.echo(f"✗ {extent}: {len(report.damaged) + len(report.findings)} problems.")
    if not report.ok:
        raise typer.Exit(1)


def proven_until(lake: str, store: str) -> int:
    """The last entry that is archived, after proving that the archive is whole. Raises ArchiveDamaged."""
    report = _prove(lake, store)
    if not report.ok:
        raise ArchiveDamaged(f"The archive is not whole, so nothing is pruned. See: tape verify --lake {lake}")
    return report.until


def _prove(lake: str, store: str) -> LakeReport:
    try:
        from tape.archive.lake import Lake
        from tape.pipeline.proving import verify_lake
    except ImportError as missing:
        raise MissingExtra("An archive", "spark") from missing
    with bar("Verifying the archive") as progress:
        return verify_lake(Lake.open(lake), store, progress)
