"""The gate that reading statements of this process pass on SQLite: a full write-ahead log closes it for a moment.

The log begins anew only when no statement reads from it. Statements that overlap, or one that takes long on a loaded
machine, would let it grow without a limit. So the commit that finds the log full lets no statement begin, waits for
those that run, and interrupts what runs longer: the statement is then executed again, from its beginning, by the
connection. A statement is interrupted once; the second time it is waited for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TypeVar

import apsw

from tape.base.telemetry.metrics import Metrics

T = TypeVar("T")

# How long a statement may go on before it is interrupted, and how long a commit waits in all.
FINISH_S = 0.25
HOLD_S = 2.0
_INTERRUPT_EVERY_S = 0.02


class ReadGate:
    """Counts the statements that read, and keeps new ones waiting while it is held."""

    def __init__(self, metrics: Metrics | None) -> None:
        self._metrics = metrics
        self._changed = threading.Condition()
        self._held = threading.Lock()
        self._is_closed = False
        # Connections with a running statement, and whether that may be interrupted.
        self._running: dict[apsw.Connection, bool] = {}

    def run(self, connection: apsw.Connection, statement: Callable[[], T]) -> T:
        """Execute a statement outside of a transaction; again, if it was interrupted to let the log begin anew."""
        self._enter(connection, can_interrupt=True)
        try:
            return statement()
        except apsw.InterruptError:
            if self._metrics is not None:
                self._metrics.wal_interrupted_reads.inc()
        finally:
            self._leave(connection)
        self._enter(connection, can_interrupt=False)
        try:
            return statement()
        finally:
            self._leave(connection)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Let no statement begin, and wait for those that run, for at most HOLD_S."""
        with self._held:
            with self._changed:
                self._is_closed = True
            try:
                with self._changed:
                    self._wait_for_running()
                yield
            finally:
                with self._changed:
                    self._is_closed = False
                    self._changed.notify_all()

    def _wait_for_running(self) -> None:
        deadline = monotonic() + HOLD_S
        is_idle = self._changed.wait_for(self._is_idle, FINISH_S)
        while not is_idle and monotonic() < deadline:
            # Under the lock: none of these connections can be closed. Again and again, because an interrupt that comes
            # just before the statement has no effect.
            for connection, can_interrupt in self._running.items():
                if can_interrupt:
                    connection.interrupt()
            is_idle = self._changed.wait_for(self._is_idle, _INTERRUPT_EVERY_S)

    def _is_idle(self) -> bool:
        return not self._running

    def _enter(self, connection: apsw.Connection, *, can_interrupt: bool) -> None:
        with self._changed:
            while self._is_closed:
                self._changed.wait()
            self._running[connection] = can_interrupt

    def _leave(self, connection: apsw.Connection) -> None:
        with self._changed:
            del self._running[connection]
            if self._is_closed:
                self._changed.notify_all()
