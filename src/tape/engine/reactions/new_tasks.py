"""New tasks: created by a transaction, and not inserted yet.

A claim in the same transaction leases them before they are inserted, which saves reading and updating them.
"""

from __future__ import annotations

from collections.abc import Sequence

from tape.engine.reactions.task_order import CHANNEL
from tape.engine.reactions.tasks import Task
from tape.store import Transaction
from tape.store.connection import Row
from tape.store.records import load_all, row_of

_TASK_ID, _REACTION_ID = map(Task.__struct_fields__.index, ("task_id", "reaction_id"))


class NewTasks:
    """The new tasks of a transaction, rows of tape_tasks in the order of the journal."""

    def __init__(self, rows: Sequence[Row] = ()) -> None:
        self._rows = rows
        self._leased: dict[str, Task] = {}
        self._is_inserted = not rows

    def __len__(self) -> int:
        return len(self._rows)

    def of(self, reaction_id: str) -> list[Task]:
        """Those of a reaction that are not inserted."""
        if self._is_inserted:
            return []
        return load_all(Task, [row for row in self._rows if row[_REACTION_ID] == reaction_id])

    def lease(self, tasks: Sequence[Task]) -> None:
        """Insert these tasks as they are leased now."""
        self._leased |= {task.task_id: task for task in tasks}

    def has_leased(self, reaction_id: str) -> bool:
        """Whether some of a reaction are leased and not inserted: its limits do not count them yet."""
        return not self._is_inserted and any(task.reaction_id == reaction_id for task in self._leased.values())

    def insert(self, tx: Transaction) -> None:
        """Insert the tasks, and notify other servers of those that are not leased."""
        if self._is_inserted:
            return
        self._is_inserted = True
        leased = {task_id: row_of(task) for task_id, task in self._leased.items()}
        rows = [leased.get(row[_TASK_ID], row) for row in self._rows]
        tx.insert("tape_tasks", Task.__struct_fields__, rows)
        if len(self._leased) < len(self._rows):
            tx.notify(CHANNEL)
