"""A reader that survives the loss of its connection, for jobs that go on beside damage."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from tape.base.retry import WHILE_UNAVAILABLE, Backoff
from tape.errors import BackendCrashed, BackendStuck, StoreUnavailable, TapeError
from tape.store.connection import DatabaseConnection, Reader, Row

# A PostgreSQL server whose backend crashed recovers first.
RECONNECT_DEADLINE_S = 60.0


class ReconnectingReader(Reader):
    """Opens a new connection when its own is lost, and asks again.

    A statement that ends the connection twice, while the database can be reached in between, reads what is damaged: it
    raises BackendCrashed. If the database cannot be reached for `deadline_s`, StoreUnavailable is raised; the first
    connection is tried once. Use as a context manager.
    """

    def __init__(self, connect: Callable[[], DatabaseConnection], deadline_s: float = RECONNECT_DEADLINE_S) -> None:
        self._connect = connect
        self._deadline_s = deadline_s
        self._connection = connect()
        self.dialect = self._connection.dialect
        self.damage = self._connection.damage

    def __enter__(self) -> ReconnectingReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def query(self, sql: str, *params: Any) -> list[Row]:
        """All rows of a SELECT."""
        try:
            return self._connection.query(sql, *params)
        except BackendStuck:
            self._reconnect()
            raise
        except StoreUnavailable:
            self._reconnect()
        try:
            return self._connection.query(sql, *params)
        except StoreUnavailable as error:
            self._reconnect()
            raise BackendCrashed(f"The connection is lost whenever this is read ({error}).") from error

    def is_any(self, column: str, values: Sequence[str]) -> tuple[str, Any]:
        """A condition "column is one of values" and its one parameter."""
        return self._connection.is_any(column, values)

    def pairs(self, values: Sequence[tuple[int, int]]) -> tuple[str, Any]:
        """A table of pairs of numbers with the columns `low` and `high`, for FROM, and its one parameter."""
        return self._connection.pairs(values)

    def texts(self, values: Sequence[str]) -> tuple[str, Any]:
        """A table of texts with the column `value`, for FROM, and its one parameter."""
        return self._connection.texts(values)

    def lookup(self, table: str, columns: str, keys: Sequence[str], wanted: Sequence[tuple[str, ...]]) -> list[Row]:
        """The rows whose keys, texts all of them, are among those wanted; in any order."""
        return self._connection.lookup(table, columns, keys, wanted)

    def limit_statements(self, seconds: float) -> None:
        """Limit the statements of the connection as it is now; a new one has no limit."""
        self._connection.limit_statements(seconds)

    def _reconnect(self) -> None:
        self._close()
        deadline = time.monotonic() + self._deadline_s
        backoff = Backoff(WHILE_UNAVAILABLE)
        while True:
            try:
                self._connection = self._connect()
                self._connection.query("SELECT 1")
                return
            except StoreUnavailable:
                if time.monotonic() > deadline:
                    raise
                backoff.wait()

    def _close(self) -> None:
        with contextlib.suppress(TapeError):
            self._connection.close()
