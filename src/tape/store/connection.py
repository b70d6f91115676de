"""What a database driver has to offer: one connection, its statements and its transactions.

SQL is written once, with `?` for parameters; what differs between the dialects (bulk inserts,
membership tests) is a method here. Driver exceptions leave as errors of `tape.errors`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal

Row = tuple[Any, ...]
Dialect = Literal["sqlite", "postgres"]


class Reader(ABC):
    """Questions to the database. Each statement sees everything committed before it."""

    dialect: Dialect

    @abstractmethod
    def query(self, sql: str, *params: Any) -> list[Row]:
        """All rows of a SELECT."""

    def one(self, sql: str, *params: Any) -> Row | None:
        """The first row of a SELECT, or None."""
        rows = self.query(sql, *params)
        return rows[0] if rows else None

    @abstractmethod
    def is_any(self, column: str, values: Sequence[str]) -> tuple[str, Any]:
        """A condition "column is one of values" and its one parameter."""

    @abstractmethod
    def pairs(self, values: Sequence[tuple[int, int]]) -> tuple[str, Any]:
        """A table of pairs of numbers with the columns `low` and `high`, for FROM, and its one parameter."""

    @abstractmethod
    def lookup(self, table: str, columns: str, keys: Sequence[str], wanted: Sequence[tuple[str, ...]]) -> list[Row]:
        """The rows whose keys, texts all of them, are among those wanted; in any order."""


class DatabaseConnection(Reader):
    """One connection of the writer: statements and the transaction around them."""

    def __init__(self) -> None:
        self.memory: dict[type, Any] = {}

    @abstractmethod
    def execute(self, sql: str, *params: Any) -> int:
        """Run one statement; the number of rows it changed."""

    @abstractmethod
    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        """Insert many rows the fastest way this database has."""

    @abstractmethod
    def upsert(self, table: str, keys: Sequence[str], columns: Sequence[str], rows: Sequence[Row]) -> None:
        """Insert rows, or overwrite the ones whose keys exist. `columns` includes the keys."""

    @abstractmethod
    def update(self, table: str, keys: Sequence[str], columns: Sequence[str], rows: Sequence[Row]) -> None:
        """Overwrite some columns of the rows with these keys, if they are there. `columns` includes the keys."""

    def notify(self, channel: str) -> None:
        """Wake other processes that listen to the channel after the commit, where the database can."""
        return

    def lift_time_limits(self) -> None:
        """Let the transactions of this connection take as long as they need: migrations and jobs, not the server."""
        return

    @abstractmethod
    def begin(self) -> None:
        """Begin a transaction that excludes every other writer of this database until it ends."""

    @abstractmethod
    def commit(self, flush: Callable[[], None] = lambda: None) -> None:
        """Make the transaction durable. What `flush` executes last may travel together with the commit,
        so it cannot ask questions or look at results."""

    @abstractmethod
    def rollback(self) -> None:
        """Undo the transaction; does nothing if the database already has."""

    @abstractmethod
    def savepoint(self) -> None:
        """Set a savepoint inside the transaction."""

    @abstractmethod
    def release(self) -> None:
        """Forget the last savepoint, keeping what was done since."""

    @abstractmethod
    def rollback_to_savepoint(self) -> None:
        """Undo what was done since the last savepoint and forget it."""

    @property
    @abstractmethod
    def in_transaction(self) -> bool:
        """Whether the transaction is still there: some failures end it."""

    def sort_on_disk(self) -> None:
        """Sort in files from now on: a migration sorts whole tables, which may be larger than the memory."""
        return

    @abstractmethod
    def run_script(self, sql: str) -> None:
        """Run several statements without parameters."""

    @abstractmethod
    def has_table(self, name: str) -> bool:
        """Whether a table of that name exists."""

    @abstractmethod
    def close(self) -> None:
        """Give the connection back to the operating system."""


def placeholders(count: int) -> str:
    """`?,?,?` for so many parameters."""
    return ",".join("?" * count)


def upsert_sql(table: str, keys: Sequence[str], columns: Sequence[str], source: str) -> str:
    """The INSERT … ON CONFLICT that both dialects understand; `source` provides the rows."""
    changes = ",".join(f"{column} = excluded.{column}" for column in columns if column not in keys)
    # Only names of our own tables and columns are put together here, never a caller's text.
    return f"INSERT INTO {table} ({','.join(columns)}) {source} ON CONFLICT ({','.join(keys)}) DO UPDATE SET {changes}"
