"""Opens the database of a command, and says when the command creates it."""

from __future__ import annotations

import typer

from tape.base.store_url import describe_source
from tape.base.url_mask import mask_urls
from tape.store import Database, open_database
from tape.store.urls import is_memory


def open_for_writing(store: str, *, may_create: bool) -> Database:
    """The database of a command that writes. One that may create it brings its schema up to date too."""
    if may_create:
        announce_creation(store)
    return open_database(store, migrate=may_create, create=may_create)


def announce_creation(store: str) -> None:
    """Say on standard error that the command creates the database, if there is none."""
    if not is_memory(store) and not open_database(store).exists:
        typer.echo(f"There is no database at {mask_urls(store)}{describe_source(store)} yet: creating it.", err=True)
