"""`tape backup`: back up a store beside its running servers."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from tape.backup.location import open_location
from tape.backup.manifest import ArtifactList, WalletKey
from tape.backup.writer import ArtifactMode, BackupReport, create_backup
from tape.base.config import load_settings
from tape.base.extras import require_server_libraries
from tape.cli.options import DEFAULT_STORE, Output, OutputOption, StoreOption
from tape.cli.output import print_facts, print_json
from tape.cli.progress import bar
from tape.store import open_database

MAX_SHOWN = 20


class ArtifactChoice(StrEnum):
    """What happens to artifacts."""

    copy = "copy"
    reference = "reference"


def backup(
    target: Annotated[str, typer.Argument(help="Folder, file://…, s3://…, gs://… or az://… for the backup.")],
    artifacts: Annotated[
        ArtifactChoice | None,
        typer.Option(
            help="Copy artifacts, or leave them where they are. [default: copy from a folder, reference in a bucket]"
        ),
    ] = None,
    accept_damage: Annotated[
        bool, typer.Option("--accept-damage", help="Back up what is left of a damaged journal, and record the damage.")
    ] = False,
    store: StoreOption = DEFAULT_STORE,
    output: OutputOption = Output.text,
) -> None:
    """Back up the journal and all tables; repeat it to add what is new. The server may keep running.

    Verifies the hash chain, and exits with 1 if the journal is damaged. A backup has the data of all tenants.
    """
    require_server_libraries("tape backup")
    source = open_location(load_settings({"store": store}).artifact_store)
    mode: ArtifactMode = artifacts.value if artifacts else "copy" if source.is_local else "reference"
    database = open_database(store, create=False)
    with bar("Backing up") as progress:
        report = create_backup(
            database,
            open_location(target),
            artifacts=source,
            artifact_mode=mode,
            accept_damage=accept_damage,
            progress=progress,
        )
    if output is Output.json:
        print_json(report)
    else:
        _print(report)


def _print(report: BackupReport) -> None:
    typer.echo(
        f"Backed up {report.entries:,} new entries and {report.rows:,} rows of other tables to {report.location}"
        f" ({report.bytes_written:,} bytes)."
    )
    facts = {
        "journal": f"{report.journal_id}, epoch {report.epoch}",
        "entries": f"{report.oldest} to {report.global_seq}, verified" if report.global_seq else "none yet",
        "chain": report.chain,
        "artifacts": describe_artifacts(report.artifacts),
    }
    print_facts(facts | describe_keys(report.wallet_keys))
    if report.pruned is not None:
        first, last = report.pruned
        warn(f"entries {first} to {last} were pruned before they were backed up.")
    for each in report.damage[:MAX_SHOWN]:
        warn(f"entries {each.first} to {each.last} of the journal: {each.problem}.")
    for note in report.notes:
        warn(f"{note}.")


def describe_artifacts(artifacts: ArtifactList) -> str:
    """What became of artifacts, in one line."""
    if artifacts.mode == "reference":
        return f"not copied, {artifacts.references:,} entries refer to {artifacts.location or 'the server’s store'}"
    return f"{artifacts.count:,} copied ({artifacts.size:,} bytes)"


def describe_keys(keys: list[WalletKey]) -> dict[str, str]:
    """Which master keys the secrets need; the keys themselves are in no backup."""
    return (
        {"wallet key": "; ".join(f"{key.key_id} for {len(key.secrets):,} secrets, not in the backup" for key in keys)}
        if keys
        else {}
    )


def warn(text: str) -> None:
    """Print a warning on standard error."""
    typer.echo(f"warning: {text}", err=True)
