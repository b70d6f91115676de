"""What the database has damaged beside the entries themselves: counted each time it is met, logged once per entry."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Literal

from tape.base.telemetry.metrics import Metrics
from tape.errors import StoreDamaged

log = logging.getLogger(__name__)

# Findings that are remembered in order not to be logged again. Further ones are counted only.
MAX_REMEMBERED = 10_000
AVOIDED_S = 3_600.0

# What is damaged of an entry that can be delivered all the same.
Part = Literal["checksum", "index"]


class DamageLog:
    """The findings of one process. Connections of all threads share it."""

    def __init__(self, metrics: Metrics | None = None) -> None:
        self._metrics = metrics
        self._seen: set[tuple[str, int]] = set()
        self._crashing: tuple[int, ...] = ()
        # Until when indexes are not read because one ended PostgreSQL's process.
        self._avoided_until = 0.0
        # Whether a search in an index may have no end; the store sets it.
        self.is_index_endless: Callable[[], bool] = lambda: False
        self._lock = threading.Lock()

    def record_recovered(self, part: Part, global_seq: int) -> None:
        """Record an entry that was delivered although its checksum or its index entry is damaged."""
        if self._metrics is not None:
            self._metrics.recovered_entries.labels(part).inc()
        if self._is_new(part, global_seq):
            log.error("the %s of entry %d is damaged; the entry is whole. Run: tape verify", part, global_seq)

    def record_error(self, error: Exception, first: int) -> None:
        """Record what the database said about entries that it cannot read."""
        if self._is_new("unreadable", first):
            log.error("entry %d cannot be read: %s", first, error)

    def record_crash(self, global_seq: int) -> None:
        """Record an entry that ends PostgreSQL's process when it is read: no reader of this process reads it again."""
        with self._lock:
            self._crashing = tuple(sorted({*self._crashing, global_seq}))

    def record_index_crash(self) -> None:
        """Record that an index ends PostgreSQL's process: for an hour entries are read by the primary key alone."""
        self._avoided_until = time.monotonic() + AVOIDED_S

    def check_indexes(self) -> None:
        """Raise StoreDamaged if a search in an index might end or stop PostgreSQL's process."""
        if self.avoids_indexes:
            raise StoreDamaged("An index of the journal ends or stops PostgreSQL's process: it is not read.")

    @property
    def avoids_indexes(self) -> bool:
        """Whether entries are read by the primary key alone."""
        return time.monotonic() < self._avoided_until or self.is_index_endless()

    def first_crash(self, after: int, until: int) -> int | None:
        """The first entry in a range that must not be read; None if there is none."""
        return next((number for number in self._crashing if after < number <= until), None)

    def _is_new(self, what: str, global_seq: int) -> bool:
        with self._lock:
            if (what, global_seq) in self._seen or len(self._seen) >= MAX_REMEMBERED:
                return False
            self._seen.add((what, global_seq))
            return True
