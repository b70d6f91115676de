"""Stores with something in every table that tests can fill, and what is in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tape.backup.writer import NOT_IN_SNAPSHOT
from tape.journal.appender import append
from tape.journal.key_index import TABLES as INDEX_TABLES
from tape.model.entry import Draft, checked
from tape.store import Transaction, open_database
from tape.store.connection import DatabaseConnection

VALUES: dict[str, Any] = {"integer": 1, "real": 0.1, "text": "säule\n\\N\t'x'", "blob": bytes(range(256))}


def append_entries(url: str, count: int, run: str = "r1", payload: str = "") -> None:
    """Append entries, some with characters outside of ASCII."""

    def write(tx: Transaction) -> None:
        drafts = [
            Draft(
                subject=f"/tape/order/created/{number}",
                run_id=run if number % 2 else f"{run}-ü",
                payload_json=msgspec.json.encode({"n": number, "text": payload or "größe \\ 'x'"}).decode(),
                tenant="acme" if number % 3 else "",
            )
            for number in range(count)
        ]
        append(tx, [checked(draft) for draft in drafts])

    write_in_transaction(url, write)


def write_in_transaction(url: str, write: Any) -> None:
    connection = open_database(url).connect()
    try:
        connection.begin()
        tx = Transaction(connection)
        write(tx)
        connection.commit(tx.flush)
    finally:
        connection.close()


def fill_every_table(url: str) -> None:
    """Give every table of a snapshot a row, with the values that are hardest to keep."""
    connection = open_database(url).connect()
    try:
        connection.begin()
        for table in connection.tables():
            if table not in NOT_IN_SNAPSHOT and not connection.query(f"SELECT 1 FROM {table} LIMIT 1"):
                columns = connection.columns(table)
                row = tuple(VALUES[column.kind] for column in columns)
                connection.load(table, [column.name for column in columns], [row])
        connection.commit()
    finally:
        connection.close()


def read_tables(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table but the migrations and the indexes, which are made from the journal."""
    connection = open_database(url).connect(read_only=True)
    try:
        left_out = ("tape_migrations", *INDEX_TABLES)
        return {table: _rows(connection, table) for table in connection.tables() if table not in left_out}
    finally:
        connection.close()


def _rows(connection: DatabaseConnection, table: str) -> list[tuple[Any, ...]]:
    names = sorted(column.name for column in connection.columns(table))
    listed = ",".join(f'"{name}"' for name in names)
    return sorted(connection.query(f"SELECT {listed} FROM {table}"), key=repr)


def files_below(folder: Path) -> list[str]:
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
