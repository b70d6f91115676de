"""`tape restore`: restore a backup into an empty store."""

from __future__ import annotations

from typing import Annotated

import typer

from tape.backup.location import open_location
from tape.backup.restore import RestoreReport, restore_backup
from tape.base.config import load_settings
from tape.base.extras import require_server_libraries
from tape.base.url_mask import mask_urls
from tape.cli.backup import MAX_SHOWN, describe_artifacts, describe_keys, warn
from tape.cli.options import DEFAULT_STORE, Output, OutputOption, StoreOption
from tape.cli.output import moment, print_facts, print_json
from tape.cli.progress import bar
from tape.errors import InvalidInput
from tape.store import open_database
from tape.store.urls import is_memory


def restore(
    source: Annotated[str, typer.Argument(help="Folder, file://…, s3://…, gs://… or az://… of the backup.")],
    until: Annotated[
        int | None,
        typer.Option(min=0, help="Restore the newest snapshot at or before this global_seq. [default: newest]"),
    ] = None,
    last_known: Annotated[
        int | None,
        typer.Option(min=0, help="Last global_seq that the lost store gave out. [default: leave out 1000000 numbers]"),
    ] = None,
    as_new: Annotated[
        bool, typer.Option("--as-new", help="Make a copy with a new journal id, for another environment.")
    ] = False,
    store: StoreOption = DEFAULT_STORE,
    output: OutputOption = Output.text,
) -> None:
    """Restore a backup into an empty store, all or nothing, and begin a new epoch of its journal.

    Verifies every file and the hash chain. A restore that was interrupted is started again by the same command.
    """
    require_server_libraries("tape restore")
    if is_memory(store):
        raise InvalidInput("--store memory ends with this process; name a file or a database.")
    if as_new and last_known is not None:
        raise InvalidInput("--as-new and --last-known exclude each other: a copy has numbers of its own.")
    with bar("Restoring") as progress:
        report = restore_backup(
            open_location(source),
            open_database(store),
            until=until,
            last_known=last_known,
            as_new=as_new,
            artifacts=open_location(load_settings({"store": store}).artifact_store),
            progress=progress,
        )
    if output is Output.json:
        print_json(report)
    else:
        _print(report, store, until)


def _print(report: RestoreReport, store: str, until: int | None) -> None:
    typer.echo(f"Restored {report.entries:,} entries and {report.rows:,} rows of other tables into {mask_urls(store)}.")
    facts = {
        "snapshot": f"{report.snapshot}, of {moment(report.created_ms)}",
        "journal": f"{report.journal_id}, now in epoch {report.epoch}",
        "entries": f"{report.oldest} to {report.global_seq}, verified" if report.global_seq else "none",
        "next entry": f"{report.resumes_at} (journal.diverged); no number below it is given out again",
        "artifacts": f"{report.restored_artifacts:,} restored"
        if report.artifacts.mode == "copy"
        else describe_artifacts(report.artifacts),
    }
    print_facts(facts | describe_keys(report.wallet_keys))
    if until is not None and until != report.global_seq:
        warn(f"the store is as of {report.global_seq}, the newest snapshot at or before {until}.")
    if report.not_restored is not None:
        first, last = report.not_restored
        warn(f"entries {first} to {last} of the backup are after this snapshot, and are not restored.")
    for each in report.damage[:MAX_SHOWN]:
        warn(f"entries {each.first} to {each.last} were damaged when they were backed up: {each.problem}.")
