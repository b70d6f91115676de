"""What a database driver has to offer: one connection, its statements and its transactions.

SQL is written once, with `?` for parameters; what differs between the dialects (bulk inserts,
membership tests) is a method here. Driver exceptions leave as errors of `tape.errors`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

from tape.store.damage_log import DamageLog

Row = tuple[Any, ...]
Dialect = Literal["sqlite", "postgres"]
ColumnKind = Literal["integer", "real", "text", "blob"]


class Column(NamedTuple):
    """A column of a table, and what its values are in both dialects."""

    name: str
    kind: ColumnKind


# Rows that are read at once where a whole table is streamed.
STREAM_ROWS = 100


class Reader(ABC):
    """Questions to the database. Each statement sees everything committed before it."""

    dialect: Dialect
    damage: DamageLog

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
    def texts(self, values: Sequence[str]) -> tuple[str, Any]:
        """A table of texts with the column `value`, for FROM, and its one parameter."""

    @abstractmethod
    def lookup(self, table: str, columns: str, keys: Sequence[str], wanted: Sequence[tuple[str, ...]]) -> list[Row]:
        """The rows whose keys, texts all of them, are among those wanted; in any order."""

    def limit_statements(self, seconds: float) -> None:
        """Let no statement take longer than that, where the database can; 0 is without a limit."""
        return


class DatabaseConnection(Reader):
    """One connection of the writer: statements and the transaction around them."""

    def __init__(self) -> None:
        self.memory: dict[type, Any] = {}
        self.damage = DamageLog()

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

    @contextmanager
    def slow_statements(self) -> Iterator[None]:
        """Let the statements within take as long as a transaction may."""
        yield

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
    def is_current(self) -> bool:
        """Whether this is a connection to what the address of the database stands for now."""
        return True

    @property
    @abstractmethod
    def in_transaction(self) -> bool:
        """Whether the transaction is still there: some failures end it."""

    def sort_on_disk(self) -> None:
        """Sort in files from now on: a migration sorts whole tables, which may be larger than the memory."""
        return

    def checkpoint(self) -> None:
        """Copy what is only in the write-ahead log into the database file, where there is one."""
        return

    def keep_log(self) -> None:
        """Leave the write-ahead log as it is when the connection is closed, so that a damaged one can be examined."""
        return

    @abstractmethod
    def run_script(self, sql: str) -> None:
        """Run several statements without parameters."""

    @abstractmethod
    def has_table(self, name: str) -> bool:
        """Whether a table of that name exists."""

    # ── whole tables: backup and restore ─────────────────────────────────────────────────────────

    @abstractmethod
    def begin_snapshot(self) -> None:
        """Begin a transaction whose reads all see the database as it is at the first of them; writers go on."""

    @abstractmethod
    def stream(self, sql: str) -> Iterator[list[Row]]:
        """All rows of a SELECT in batches, without holding them all in memory. Needs a transaction."""

    @abstractmethod
    def tables(self) -> list[str]:
        """The tables of Tape, in the order of their names."""

    @abstractmethod
    def columns(self, table: str) -> list[Column]:
        """The columns of a table, in their order."""

    @abstractmethod
    def load(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        """Insert rows in which every value may be None."""

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
