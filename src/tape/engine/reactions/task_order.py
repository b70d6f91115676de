"""The order of tasks: of the open tasks of a reaction with the same ordering key, one is due and the others wait.

A task that waits has a due time that never comes. When the task before it is completed or becomes a dead letter, the
next one of the key becomes due.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from tape.base import structs
from tape.model.entry import Entry
from tape.model.reaction_states import POOL, TaskStatus
from tape.model.shared_command import SUMMARY
from tape.store import Transaction

# The due time of a task that waits for an earlier one: the largest integer that every client can read.
WAITS_MS = 2**53 - 1
# The channel on which servers notify each other of tasks that are due.
CHANNEL = "tape_tasks"

OPEN = f"ordering_key <> '' AND status IN ({TaskStatus.PENDING}, {TaskStatus.CLAIMED})"


class TaskConditions(msgspec.Struct, frozen=True):
    """What a command to a worker pool waits for: earlier ones of its key, and its downstream, if it has them.

    `record` says what is kept of its run.
    """

    ordering_key: str = ""
    downstream: str = ""
    record: str = ""
    # The messages of a batch; 0 if its run is not one.
    batch: int = 0

    @property
    def is_summary(self) -> bool:
        """Whether its run is kept as a summary."""
        return self.record == SUMMARY


UNCONDITIONAL = TaskConditions()
_NAMES = ('"ordering_key"', '"downstream"', '"record"')


def conditions_of(reaction_id: str, entry: Entry) -> TaskConditions:
    """The conditions of the task that a reaction makes of an entry; tasks of other reactions than pools have none."""
    text = entry.payload_json
    is_command = reaction_id.startswith(POOL) and entry.kind == "command"
    if not is_command or not any(name in text for name in _NAMES):
        return UNCONDITIONAL
    return structs.decode(text, TaskConditions)


def find_open_keys(tx: Transaction, reaction_id: str, keys: Collection[str]) -> set[str]:
    """Those of the keys that have open tasks of a reaction."""
    if not keys:
        return set()
    source, values = tx.texts(sorted(keys))
    rows = tx.query(
        f"SELECT value FROM {source} WHERE EXISTS (SELECT 1 FROM tape_tasks WHERE reaction_id = ?"
        f" AND ordering_key = value AND {OPEN})",
        values,
        reaction_id,
    )
    return {row[0] for row in rows}


def release_next(tx: Transaction, closed: Iterable[tuple[str, str]], now: int) -> int:
    """Make the next task due for each reaction id and ordering key of which a task was closed; how many waited."""
    keys: dict[str, set[str]] = {}
    for reaction_id, key in closed:
        if key:
            keys.setdefault(reaction_id, set()).add(key)
    total = 0
    for reaction_id, some in keys.items():
        source, values = tx.texts(sorted(some))
        released = tx.execute(
            "UPDATE tape_tasks SET next_attempt_at_ms = CASE WHEN source_ts_ms < ? THEN source_ts_ms ELSE ? END"
            f" WHERE status = {TaskStatus.PENDING} AND next_attempt_at_ms = {WAITS_MS} AND task_id IN ("
            " SELECT (SELECT task_id FROM tape_tasks WHERE reaction_id = ? AND ordering_key = value"
            f" AND {OPEN} ORDER BY source_global_seq, shard LIMIT 1) FROM {source})"
            " AND NOT EXISTS (SELECT 1 FROM tape_downstreams WHERE name = tape_tasks.downstream AND held = 1)",
            now,
            now,
            reaction_id,
            values,
        )
        if released:
            tx.notify(CHANNEL)
            total += released
    return total
