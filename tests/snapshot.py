"""Snapshots of a database, put back in place of it while servers are connected: what a restore or a failover does."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg


class Snapshot:
    """A copy of a database as it is now. No process may be connected to it meanwhile."""

    def __init__(self, store_url: str) -> None:
        self._url = store_url
        if store_url.startswith("sqlite:"):
            self._path = Path(store_url.removeprefix("sqlite:"))
            self._copy = self._path.with_name("snapshot.db")
            shutil.copyfile(self._path, self._copy)
        else:
            parts = urlsplit(store_url)
            self._name = parts.path.lstrip("/")
            self._admin = urlunsplit(parts._replace(path="/postgres"))
            with psycopg.connect(self._admin, autocommit=True) as admin:
                admin.execute(f"CREATE DATABASE {self._name}_copy TEMPLATE {self._name} STRATEGY file_copy")

    def put_back(self) -> None:
        """Replace the database by the copy. The connections of PostgreSQL are cut."""
        if self._url.startswith("sqlite:"):
            replace_file(self._path, self._copy)
        else:
            with psycopg.connect(self._admin, autocommit=True) as admin:
                admin.execute(f"DROP DATABASE {self._name} WITH (FORCE)")
                admin.execute(f"ALTER DATABASE {self._name}_copy RENAME TO {self._name}")

    def empty(self) -> None:
        """Replace the database by an empty one."""
        if self._url.startswith("sqlite:"):
            empty = self._path.with_name("empty.db")
            empty.touch()
            replace_file(self._path, empty)
        else:
            with psycopg.connect(self._admin, autocommit=True) as admin:
                admin.execute(f"DROP DATABASE {self._name} WITH (FORCE)")
                admin.execute(f"CREATE DATABASE {self._name}")


def replace_file(path: Path, other: Path) -> None:
    """Put another SQLite file in the place of one, without the write-ahead log of the one."""
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    other.replace(path)
