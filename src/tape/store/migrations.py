"""Numbered one-way migrations: `migrations/NNNN_name.<dialect>.sql`, applied under the write lock."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tape.base.clock import now_ms
from tape.errors import RestoreUnfinished, SchemaTooNew
from tape.store.connection import DatabaseConnection, Dialect

# The table that a store has while a backup is restored into it.
RESTORE_MARKER = "tape_restore"
_FOLDER = Path(__file__).with_name("migrations")
_FILE = re.compile(r"(\d{4})_(\w+)\.(sqlite|postgres)\.sql")


class Migration(NamedTuple):
    """One step of the schema, and the file that has it."""

    number: int
    name: str
    file: Path

    def __str__(self) -> str:
        return f"{self.number:04d}_{self.name}"


def known_migrations(dialect: Dialect) -> list[Migration]:
    """The migrations that this version of Tape ships, in order."""
    files = [(_FILE.fullmatch(file.name), file) for file in _FOLDER.iterdir()]
    return sorted(Migration(int(name[1]), name[2], file) for name, file in files if name and name[3] == dialect)


def applied_migrations(connection: DatabaseConnection) -> list[tuple[int, str]]:
    """Number and name of what the database has already been through."""
    if not connection.has_table("tape_migrations"):
        return []
    return [(n, name) for n, name in connection.query("SELECT number, name FROM tape_migrations ORDER BY number")]


def check_restored(connection: DatabaseConnection) -> None:
    """Raise RestoreUnfinished if a backup is being restored into the database, or the restore was interrupted."""
    if connection.has_table(RESTORE_MARKER):
        row = connection.one(f"SELECT source FROM {RESTORE_MARKER}")
        raise RestoreUnfinished(
            f"A restore from {row[0] if row else 'a backup'} into this store has not finished; the store has no data."
            " If it was interrupted, run the same tape restore again."
        )


def pending_migrations(connection: DatabaseConnection) -> list[Migration]:
    """What `migrate` would apply. A database from the future is refused, and so is one with an unfinished restore."""
    check_restored(connection)
    known = known_migrations(connection.dialect)
    applied = applied_migrations(connection)
    if applied and applied[-1][0] > known[-1].number:
        number, name = applied[-1]
        raise SchemaTooNew(
            f"The database has migration {number:04d}_{name}, this version of Tape knows {known[-1]} at most. "
            "Upgrade Tape; migrations go one way."
        )
    done = {number for number, _ in applied}
    return [migration for migration in known if migration.number not in done]


def migrate(connection: DatabaseConnection) -> list[Migration]:
    """Apply what is pending, all or nothing; several processes may do so at once."""
    if not pending_migrations(connection):
        return []
    connection.sort_on_disk()
    connection.lift_time_limits()
    connection.begin()
    try:
        # Read again under the lock: another process may have applied them.
        pending = pending_migrations(connection)
        apply_migrations(connection, pending)
        connection.commit()
    except BaseException:
        connection.rollback()
        raise
    return pending


def apply_migrations(connection: DatabaseConnection, migrations: Sequence[Migration]) -> None:
    """Apply migrations in the transaction of the connection."""
    for migration in migrations:
        connection.run_script(migration.file.read_text(encoding="utf-8"))
        connection.execute(
            "INSERT INTO tape_migrations (number, name, applied_at_ms) VALUES (?, ?, ?)",
            migration.number,
            migration.name,
            now_ms(),
        )
