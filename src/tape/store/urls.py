"""From a store URL to a database."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tape.base.url_mask import mask_urls
from tape.errors import UnknownStore
from tape.store.database import Database
from tape.store.sqlite_limits import SqliteLimits

KNOWN = "sqlite:<path>, a bare path, memory, postgres://, postgresql://, alloydb://"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
_POSTGRES = {"postgres", "postgresql", "alloydb"}
_MEMORY = {"memory", ":memory:", "sqlite::memory:"}


def is_memory(url: str) -> bool:
    """Whether the store lives in one process and ends with it."""
    return url in _MEMORY


def open_database(url: str, *, sqlite_limits: SqliteLimits | None = None, **options: Any) -> Database:
    """The database behind a store URL, not yet opened: use it with `async with`."""
    limits = sqlite_limits or SqliteLimits()
    if is_memory(url):
        from tape.store.sqlite import MemoryDatabase

        return MemoryDatabase(url, sqlite_limits=limits, **options)
    scheme = _SCHEME.match(url)
    if scheme is None or scheme[1].lower() == "sqlite":
        from tape.store.sqlite import SqliteDatabase

        path = url if scheme is None else url[scheme.end() :].removeprefix("//")
        if not path:
            raise UnknownStore(f"The store URL {mask_urls(url)!r} has no path. Example: sqlite:tape.db")
        return SqliteDatabase(url, Path(path).expanduser(), sqlite_limits=limits, **options)
    if scheme[1].lower() in _POSTGRES:
        from tape.store.postgres import PostgresDatabase

        return PostgresDatabase(url, **options)
    raise UnknownStore(f"The store URL {mask_urls(url)!r} has the unknown scheme {scheme[1]!r}; known are {KNOWN}.")
