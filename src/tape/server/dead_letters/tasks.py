"""Dead letters of reactions and pools: tasks that failed for good."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tape.engine.reactions import dead_letters, registry, tasks
from tape.engine.reactions.task_broker import TaskBroker
from tape.engine.reactions.tasks import DLQ, Task
from tape.errors import IllegalTransition, TapeError
from tape.server.dead_letters.dead_letter import DeadLetter, DeadLetterQuery, Page, Unreachable, cut
from tape.store import Database


class TaskOrigin:
    """Tasks with the status DLQ, newest entries first."""

    name = "task"

    def __init__(self, database: Database, task_broker: TaskBroker) -> None:
        self._database = database
        self._task_broker = task_broker

    async def page(self, query: DeadLetterQuery, after: str, limit: int) -> Page:
        """The next tasks. A task of a pool has no subscription, so a filter by subscription finds none."""
        if query.subscription:
            return Page((), None)
        seq, _, task_id = after.partition("/")
        position = (int(seq), task_id) if seq.isdecimal() and len(seq) < 20 else None

        found = await self._database.read(
            lambda reader: dead_letters.list_tasks(
                reader, registry.resolve(reader, query.reaction_id), status=DLQ, limit=limit, after=position
            )
        )
        shown = [each for task in found if query.matches(each := _dead_letter(task))]
        last = found[-1] if len(found) == limit else None
        return Page(shown, None if last is None else f"{last.source_global_seq}/{last.task_id}")

    async def find(self, key: str) -> DeadLetter:
        """One task. Raises NotFound, or IllegalTransition if it is no dead letter."""
        task = await self._database.read(lambda reader: tasks.get(reader, key))
        if task.status != DLQ:
            raise IllegalTransition(f"The task {key!r} is {task.status.name}, not a dead letter.")
        return _dead_letter(task)

    async def redrive(self, keys: Sequence[str]) -> Mapping[str, str]:
        """Make tasks pending again; the run of a command is reopened under its id."""
        failures: dict[str, str] = {}
        for key in keys:
            try:
                moved = await self._database.write(lambda tx, key=key: dead_letters.redrive(tx, task_ids=[key]))  # type: ignore[misc]
            except TapeError as error:
                failures[key] = str(error)
            else:
                self._task_broker.notify_ready(moved.reaction_ids)
        return failures

    async def drop(self, keys: Sequence[str], reason: str) -> Mapping[str, str]:
        """Mark tasks as failed, with the reason."""
        failures: dict[str, str] = {}
        for key in keys:
            try:
                await self._database.write(lambda tx, key=key: dead_letters.drop(tx, task_ids=[key], reason=reason))  # type: ignore[misc]
            except TapeError as error:
                failures[key] = str(error)
            else:
                self._database.metrics.tasks_settled.labels("FAILED").inc()
        return failures

    async def unreachable(self, query: DeadLetterQuery) -> Sequence[Unreachable]:
        """Nothing: all tasks are in the database."""
        return ()


def _dead_letter(task: Task) -> DeadLetter:
    return DeadLetter(
        id=f"task/{task.task_id}",
        origin="task",
        dead_at_ms=task.completed_at_ms or task.created_at_ms,
        reason=cut(task.last_error or "no error was recorded"),
        reaction_id=registry.display_reaction(task.reaction_id),
        subject=task.subject,
        ordering_key=task.ordering_key,
        attempts=task.attempts,
        size_bytes=len(task.payload_json.encode()),
        redrive="The same task is pending again with 0 attempts; the run of a command goes on under its id.",
        payload=task.payload_json,
    )
