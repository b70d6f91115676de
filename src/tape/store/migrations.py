"""Numbered one-way migrations: `migrations/NNNN_name.<dialect>.sql`, applied under the write lock."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources

from tape.base.clock import now_ms
from tape.errors import SchemaTooNew
from tape.store.connection import DatabaseConnection, Dialect

_FILE = re.compile(r"(\d{4})_(\w+)\.(sqlite|postgres)\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema."""

    number: int
    name: str
    sql: str

    def __str__(self) -> str:
        return f"{self.number:04d}_{self.name}"


def known_migrations(dialect: Dialect) -> list[Migration]:
    """The migrations that this version of Tape ships, in order."""
    found = []
    for file in resources.files("tape.store").joinpath("migrations").iterdir():
        if (match := _FILE.fullmatch(file.name)) and match[3] == dialect:
            found.append(Migration(int(match[1]), match[2], file.read_text(encoding="utf-8")))
    return sorted(found, key=lambda migration: migration.number)


def applied_migrations(connection: DatabaseConnection) -> list[tuple[int, str]]:
    """Number and name of what the database has already been through."""
    if not connection.has_table("tape_migrations"):
        return []
    return [(n, name) for n, name in connection.query("SELECT number, name FROM tape_migrations ORDER BY number")]


def pending_migrations(connection: DatabaseConnection) -> list[Migration]:
    """What `migrate` would apply. A database from the future is refused."""
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
        for migration in pending:
            connection.run_script(migration.sql)
            connection.execute(
                "INSERT INTO tape_migrations (number, name, applied_at_ms) VALUES (?, ?, ?)",
                migration.number,
                migration.name,
                now_ms(),
            )
        connection.commit()
    except BaseException:
        connection.rollback()
        raise
    return pending
