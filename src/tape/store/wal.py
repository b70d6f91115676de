"""The write-ahead log of a SQLite store: its size as a metric, and what happens when it is above its limit.

Commits copy the log into the file in time, because our readers run single statements. A reader that keeps a snapshot
open, in any process, or one large transaction lets the log grow. The monitor truncates it when that is over, also if
nothing is written any more, and reports a log of more than four times the limit.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from tape.base.retry import UNLIMITED, Backoff, RetryPolicy
from tape.base.telemetry.metrics import Metrics
from tape.errors import TapeError

log = logging.getLogger(__name__)

CHECK_S = 1.0
# Writers wait while a truncation waits for readers: at most a quarter of a second each time, and ever less often.
TRUNCATE_MS = 250
STARVED = RetryPolicy(max_attempts=UNLIMITED, initial_interval_s=1.0, max_interval_s=60.0)
REPORT_FACTOR = 4
REPORT_S = 60.0

Truncate = Callable[[int], bool]


class WalMonitor:
    """Watches one log. `truncate` waits so many milliseconds for readers, and returns whether the log is empty."""

    def __init__(self, path: Path, wal_bytes: int, metrics: Metrics, truncate: Truncate) -> None:
        self._path = path
        self._wal_bytes = wal_bytes
        self._metrics = metrics
        self._truncate = truncate
        self._backoff = Backoff(STARVED)
        self._due_at = self._reported_at = float("-inf")

    async def run(self) -> None:
        """Look once a second, until cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(CHECK_S)

    async def check(self) -> None:
        """Measure the log; above its limit, truncate it, unless the last try is too recent."""
        size = self._measure()
        if size <= self._wal_bytes:
            self._backoff.reset()
            self._due_at = float("-inf")
        elif time.monotonic() >= self._due_at:
            await self._truncate_log()
            self._report(self._measure())

    async def _truncate_log(self) -> None:
        try:
            is_empty = await asyncio.to_thread(self._truncate, TRUNCATE_MS)
        except TapeError as error:
            log.info("the write-ahead log %s was not truncated: %s", self._path, error)
            is_empty = False
        self._metrics.wal_restarts.labels("done" if is_empty else "starved").inc()
        self._due_at = time.monotonic() + self._backoff.next_delay()

    def _report(self, size: int) -> None:
        now = time.monotonic()
        if size > REPORT_FACTOR * self._wal_bytes and now >= self._reported_at + REPORT_S:
            self._reported_at = now
            log.warning(
                "the write-ahead log %s has %d bytes, sqlite_wal_bytes is %d: a process keeps a read transaction open",
                self._path,
                size,
                self._wal_bytes,
            )

    def _measure(self) -> int:
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            size = 0
        self._metrics.wal_bytes.set(size)
        return size
