"""Records what an operation says to its database, so that the same can be said again with nothing around it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from bench.load import Outcome, summarize
from tape.store import Database
from tape.store.connection import DatabaseConnection, Row

Statement = tuple[str, tuple[Any, ...]]
# The calls of a connection that are statements of a transaction.
RECORDED = {
    *("query", "lookup", "execute", "insert", "upsert", "update", "notify"),
    *("savepoint", "release", "rollback_to_savepoint"),
}


class Recorder:
    """A connection that remembers the transactions made through it, and passes every other call on."""

    def __init__(self, inner: DatabaseConnection) -> None:
        self._inner = inner
        self.transactions: list[Script] = []
        self._script = Script([], [])
        self._statements = self._script.statements

    def __getattr__(self, name: str) -> Any:
        passed_on = getattr(self._inner, name)
        if name not in RECORDED:
            return passed_on

        def recorded(*arguments: Any) -> Any:
            self._statements.append((name, arguments))
            return passed_on(*arguments)

        return recorded

    def one(self, sql: str, *params: Any) -> Row | None:
        rows = self.query(sql, *params)
        return rows[0] if rows else None

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

    def recording(*, read_only: bool = False) -> Any:
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
