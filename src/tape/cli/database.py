"""Opens the database of a command, and says when the command creates it."""

from __future__ import annotations

import typer

from tape.base.store_url import describe_source
from tape.base.url_mask import mask_urls
from tape.store import Database, open_database
from tape.store.urls import is_memory


def open_for_writing(store: str, *, may_create: bool) -> Database:
    """The database of a command that writes. One that may create it brings its schema up to date too."""
    database = open_database(store, migrate=may_create, create=may_create)
    if may_create:
        announce_creation(database)
    return database


def announce_creation(database: Database) -> None:
    """Say on standard error that the command creates the database, if there is none."""
    url = database.url
    if not is_memory(url) and not database.exists:
        typer.echo(f"There is no database at {mask_urls(url)}{describe_source(url)} yet: creating it.", err=True)
