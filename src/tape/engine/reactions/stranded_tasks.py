"""Stranded tasks: those that wait although nothing that they wait for is left. The server finds and releases them.

A hold of a downstream lapses if no runtime renews it. A runtime may also end after it has released a downstream and
before it has released all its tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tape.base.clock import now_ms
from tape.engine.reactions import downstreams
from tape.engine.reactions.task_order import OPEN, WAITS_MS, release_next
from tape.model.reaction_states import TaskStatus
from tape.store import Database, Transaction

log = logging.getLogger(__name__)

# Tasks that one transaction lets go.
CHUNK = 500

_WAITS_FOR_NONE = (
    f"status = {TaskStatus.PENDING} AND next_attempt_at_ms = {WAITS_MS}"
    " AND NOT EXISTS (SELECT 1 FROM tape_downstreams WHERE name = waiting.downstream AND held = 1)"
)


async def release_stranded(database: Database) -> int:
    """Let holds lapse that were not renewed, and make every stranded task due; how many tasks."""
    for name in await database.write(lambda tx: downstreams.release_lapsed(tx, now_ms())):
        log.warning("no runtime has renewed the hold of the downstream %s: its runs go on", name)
    released = 0
    for release in (_release_unordered, _release_ordered):
        released += await _repeat(database, release)
    if released:
        log.warning("%d tasks waited for nothing; they are due now", released)
        database.metrics.tasks_stranded.inc(released)
    return released


async def _repeat(database: Database, release: Callable[[Transaction], int]) -> int:
    total = 0
    while count := await database.write(release):
        total += count
    return total


def _release_unordered(tx: Transaction) -> int:
    row = tx.one(
        "SELECT downstream FROM tape_tasks AS waiting WHERE downstream <> '' AND ordering_key = ''"
        f" AND {_WAITS_FOR_NONE} LIMIT 1"
    )
    return 0 if row is None else len(downstreams.release(tx, row[0], now_ms(), CHUNK))


def _release_ordered(tx: Transaction) -> int:
    rows = tx.query(
        f"SELECT DISTINCT reaction_id, ordering_key FROM tape_tasks AS waiting WHERE ordering_key <> ''"
        f" AND {_WAITS_FOR_NONE} AND NOT EXISTS (SELECT 1 FROM tape_tasks WHERE reaction_id = waiting.reaction_id"
        f" AND ordering_key = waiting.ordering_key AND {OPEN} AND next_attempt_at_ms < {WAITS_MS}) LIMIT {CHUNK}"
    )
    return release_next(tx, [(reaction_id, key) for reaction_id, key in rows], now_ms())
