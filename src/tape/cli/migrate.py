"""`tape migrate`: apply pending migrations."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from tape.base.store_url import describe_source
from tape.base.url_mask import mask_urls
from tape.cli.database import announce_creation
from tape.cli.options import DEFAULT_STORE, Output, OutputOption, StoreOption
from tape.store import open_database


def migrate(
    check: Annotated[
        bool, typer.Option("--check", help="Only list pending migrations; exit with 1 if there are any.")
    ] = False,
    store: StoreOption = DEFAULT_STORE,
    output: OutputOption = Output.text,
) -> None:
    """Apply pending migrations. `tape serve` applies them at start."""
    database = open_database(store, create=not check)
    if not check:
        announce_creation(database)
    elif not database.exists:
        typer.echo(f"There is no database at {mask_urls(store)}{describe_source(store)}.", err=True)
    names = [str(migration) for migration in (database.pending() if check else database.migrate())]
    if output is Output.json:
        typer.echo(msgspec.json.encode({"pending" if check else "applied": names}).decode())
    elif names:
        typer.echo(f"{'Pending' if check else 'Applied'}: {', '.join(names)}")
    else:
        typer.echo("The schema is up to date.")
    if check and names:
        raise typer.Exit(1)
