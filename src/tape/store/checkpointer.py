"""Copies the write-ahead log of a SQLite store into the file, so that the log stays below its limit."""

from __future__ import annotations

import logging
import time

import apsw

from tape.base.retry import UNLIMITED, Backoff, RetryPolicy
from tape.base.telemetry.metrics import Metrics
from tape.store.read_gate import ReadGate
from tape.store.sqlite_limits import SqliteLimits

log = logging.getLogger(__name__)

BUSY_TIMEOUT_MS = 5_000
# For statements and snapshots of other processes.
RESTART_TIMEOUT_MS = 100
STARVED = RetryPolicy(max_attempts=UNLIMITED, initial_interval_s=0.2, max_interval_s=10.0)


class Checkpointer:
    """Copies the write-ahead log into the file after a commit, when the log has grown to half of its limit.

    That copies what no reader needs. If readers overlap all the time, some are always needed and the log grows: at
    five eighths of the limit a commit waits for the readers that are running, those of this process behind the gate and
    others up to 100 ms, and the next one begins the log anew. A snapshot that stays longer is waited for again later,
    and ever less often.
    """

    def __init__(self, limits: SqliteLimits, metrics: Metrics | None, gate: ReadGate) -> None:
        self._limits = limits
        self._metrics = metrics
        self._gate = gate
        self._backoff = Backoff(STARVED)
        self._due_at = 0.0

    def __call__(self, connection: apsw.Connection, name: str, pages: int) -> int:
        """Called by SQLite after each commit. An error must not reach it: the transaction is committed."""
        try:
            if pages >= self._limits.restart_pages and time.monotonic() >= self._due_at:
                with self._gate.hold():
                    self._restart(connection, name)
            elif pages >= self._limits.checkpoint_pages:
                connection.wal_checkpoint(name, apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.Error as error:
            log.info("the write-ahead log was not copied into the file, the next commit tries again: %s", error)
        return apsw.SQLITE_OK

    def _restart(self, connection: apsw.Connection, name: str) -> None:
        connection.set_busy_timeout(RESTART_TIMEOUT_MS)
        try:
            connection.wal_checkpoint(name, apsw.SQLITE_CHECKPOINT_RESTART)
        except apsw.BusyError:
            self._due_at = time.monotonic() + self._backoff.next_delay()
            outcome = "starved"
        else:
            self._backoff.reset()
            outcome = "done"
        finally:
            connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        if self._metrics is not None:
            self._metrics.wal_restarts.labels(outcome).inc()
