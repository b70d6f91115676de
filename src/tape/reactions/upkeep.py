"""What is done and dropped does not stay for ever."""

from __future__ import annotations

from tape.reactions import letters
from tape.store import Database, Reader
from tape.telemetry.clock import now_ms

HOUR_MS = 3_600_000
CHUNK = 5_000


async def purge_tasks(database: Database, keep_h: int) -> int:
    """Remove tasks that were done or dropped longer ago than so many hours, a few at a time; how many."""
    before_ms = now_ms() - keep_h * HOUR_MS
    purged = 0
    for reaction_id in await database.read(_all_reactions):
        while True:
            count = await database.write(lambda tx: letters.purge(tx, reaction_id, before_ms, CHUNK))  # noqa: B023
            purged += count
            if count < CHUNK:
                break
    database.metrics.tasks_purged.inc(purged)
    return purged


def _all_reactions(reader: Reader) -> list[str]:
    return [row[0] for row in reader.query("SELECT reaction_id FROM tape_reactions")]
