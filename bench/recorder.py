"""Records what an operation says to its database, so that the same can be said again with nothing around it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from bench.load import Outcome, summarize
from tape.store import Database
from tape.store.connection import DatabaseConnection, Row

Statement = tuple[str, tuple[Any, ...]]


class Recorder(DatabaseConnection):
    """A connection that remembers the transactions made through it."""

    def __init__(self, inner: DatabaseConnection) -> None:
        super().__init__()
        self._inner = inner
        self.dialect = inner.dialect
        self.transactions: list[Script] = []
        self._script = Script([], [])
        self._statements = self._script.statements

    def query(self, sql: str, *params: Any) -> list[Row]:
        self._statements.append(("query", (sql, *params)))
        return self._inner.query(sql, *params)

    def is_any(self, column: str, values: Sequence[str]) -> tuple[str, Any]:
        return self._inner.is_any(column, values)

    def pairs(self, values: Sequence[tuple[int, int]]) -> tuple[str, Any]:
        return self._inner.pairs(values)

    def lookup(self, table: str, columns: str, keys: Sequence[str], wanted: Sequence[tuple[str, ...]]) -> list[Row]:
        self._statements.append(("lookup", (table, columns, keys, wanted)))
        return self._inner.lookup(table, columns, keys, wanted)

    def execute(self, sql: str, *params: Any) -> int:
        self._statements.append(("execute", (sql, *params)))
        return self._inner.execute(sql, *params)

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        self._statements.append(("insert", (table, columns, rows)))
        self._inner.insert(table, columns, rows)

    def upsert(self, table: str, keys: Sequence[str], columns: Sequence[str], rows: Sequence[Row]) -> None:
        self._statements.append(("upsert", (table, keys, columns, rows)))
        self._inner.upsert(table, keys, columns, rows)

    def update(self, table: str, keys: Sequence[str], columns: Sequence[str], rows: Sequence[Row]) -> None:
        self._statements.append(("update", (table, keys, columns, rows)))
        self._inner.update(table, keys, columns, rows)

    def begin(self) -> None:
        self._script = Script([], [])
        self._statements = self._script.statements
        self._inner.begin()

    def commit(self, flush: Callable[[], None] = lambda: None) -> None:
        def recorded() -> None:
            self._statements = self._script.last
            flush()

        self._inner.commit(recorded)
        self.transactions.append(self._script)

    def rollback(self) -> None:
        self._inner.rollback()

    def savepoint(self) -> None:
        self._statements.append(("savepoint", ()))
        self._inner.savepoint()

    def release(self) -> None:
        self._statements.append(("release", ()))
        self._inner.release()

    def rollback_to_savepoint(self) -> None:
        self._statements.append(("rollback_to_savepoint", ()))
        self._inner.rollback_to_savepoint()

    @property
    def in_transaction(self) -> bool:
        return self._inner.in_transaction

    def run_script(self, sql: str) -> None:
        self._inner.run_script(sql)

    def has_table(self, name: str) -> bool:
        return self._inner.has_table(name)

    def close(self) -> None:
        self._inner.close()


class Script:
    """One transaction: its statements, and those that travel with the commit."""

    def __init__(self, statements: list[Statement], last: list[Statement]) -> None:
        self.statements = statements
        self.last = last

    def run(self, connection: DatabaseConnection) -> None:
        """Say it all again."""
        connection.begin()
        _say(connection, self.statements)
        connection.commit(lambda: _say(connection, self.last))


def _say(connection: DatabaseConnection, statements: Sequence[Statement]) -> None:
    for method, arguments in statements:
        getattr(connection, method)(*arguments)


def record(database: Database) -> list[Recorder]:
    """Let a database that is not open yet record its writer's connections, which appear in the list."""
    recorders: list[Recorder] = []
    connect = database.connect

    def recording(*, read_only: bool = False) -> DatabaseConnection:
        if read_only:
            return connect(read_only=True)
        recorders.append(Recorder(connect()))
        return recorders[-1]

    database.connect = recording  # type: ignore[method-assign]
    return recorders


def replay(database: Database, scripts: Sequence[Script], operations: int) -> Outcome:
    """Run transactions on a bare connection; latencies are of whole transactions, the rate of operations."""
    connection = database.connect()
    try:
        latencies = []
        began = time.perf_counter()
        for script in scripts:
            started = time.perf_counter()
            script.run(connection)
            latencies.append(time.perf_counter() - started)
        took = time.perf_counter() - began
    finally:
        connection.close()
    one = summarize(latencies, took)
    return Outcome(operations, took, one.p50_ms, one.p99_ms)
