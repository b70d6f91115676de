"""Retention of completed and dropped tasks."""

from __future__ import annotations

from tape.base.clock import now_ms
from tape.engine.reactions import dead_letters
from tape.store import Database

HOUR_MS = 3_600_000
CHUNK = 5_000


async def purge_tasks(database: Database, keep_h: int) -> int:
    """Delete tasks that were completed or dropped more than `keep_h` hours ago, in chunks of 5,000; how many."""
    before_ms = now_ms() - keep_h * HOUR_MS
    purged = 0
    while True:
        count = await database.write(lambda tx: dead_letters.purge_settled(tx, before_ms, CHUNK))
        purged += count
        if count < CHUNK:
            database.metrics.tasks_purged.inc(purged)
            return purged
