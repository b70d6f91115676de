"""PostgreSQL processes that search an index without an end.

If the pages of an index point in a circle, a search never ends, and PostgreSQL looks neither for its time limits nor
for requests to stop there: only `kill -9` on the database's machine ends the process. Another search would only make
another such process. So nothing is written, and entries are read by the primary key, until the indexes were rebuilt:
then they are in other files.
"""

from __future__ import annotations

import logging
import threading

from tape.base.telemetry.metrics import Metrics
from tape.errors import BackendStuck
from tape.store.connection import Reader

log = logging.getLogger(__name__)

_FILES = "SELECT pg_relation_filenode(indexrelid) FROM pg_index WHERE indrelid = to_regclass('tape_journal') ORDER BY 1"
# The process with the write lock, if it works on one statement for longer than any may take, and waits for nothing.
_HOLDER = (
    "SELECT a.pid FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid JOIN pg_database d ON d.oid = l.database"
    " WHERE l.locktype = 'advisory' AND l.granted AND l.classid = 0 AND l.objid = ?::bigint::oid"
    " AND d.datname = current_database() AND a.state = 'active' AND a.wait_event_type IS NULL"
    " AND a.query_start < clock_timestamp() - make_interval(secs => ?)"
)


def stuck_error(backend: int) -> BackendStuck:
    """The error that names the process and what to do about it."""
    return BackendStuck(
        f"PostgreSQL's process {backend} searches an index of the journal without an end: its pages point in a circle."
        f" PostgreSQL cannot interrupt that. On its machine: kill -9 {backend}. Then: tape verify --repair-indexes."
    )


class StuckBackends:
    """What this process knows of such processes; all of its connections share it."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._lock = threading.Lock()
        self._backend = 0
        # The files of the journal's indexes when the process was met; unknown until they are asked for.
        self._files: list[int] | None = None

    @property
    def is_known(self) -> bool:
        """Whether there was one, and the indexes are not known to be rebuilt since."""
        return self._backend > 0

    def record(self, backend: int) -> None:
        """Record a process that went on with a statement far beyond its time limit."""
        with self._lock:
            self._backend, self._files = backend, None
        self._metrics.stuck_backends.inc()
        log.error("%s", stuck_error(backend))

    def check(self, reader: Reader) -> None:
        """Raise BackendStuck until the indexes of the journal are in other files."""
        if not self._backend:
            return
        files = [number for (number,) in reader.query(_FILES)]
        with self._lock:
            if self._files is None:
                self._files = files
            if self._backend and files == self._files:
                raise stuck_error(self._backend)
            self._backend, self._files = 0, None
        log.warning("the indexes of the journal were rebuilt: they are used again")

    def find_holder(self, reader: Reader, lock: int, limit_s: float) -> BackendStuck | None:
        """The error about the process that keeps the write lock, if it searches without an end."""
        row = reader.one(_HOLDER, lock, limit_s)
        return None if row is None else stuck_error(row[0])
