"""Slots: a handler that acquires its slot itself can prepare before it, and record its result after it."""

from __future__ import annotations

import asyncio
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tape.reactions.consumer import InFlightTask, TaskConsumer


class Slot:
    """The right to run one task; a reaction has `max_concurrency` of them."""

    def __init__(self, consumer: TaskConsumer, task: InFlightTask) -> None:
        self._consumer = consumer
        self._task = task
        self._acquired_at = 0.0
        self._is_acquired = False
        self._acquiring: asyncio.Lock | None = None

    async def acquire(self) -> None:
        """Wait for the slot, then for the rate limit."""
        self._task.waits_since = time.monotonic()
        await self._consumer.slots.acquire()
        self._is_acquired = True
        self._acquired_at = time.monotonic()
        await self._consumer.wait_for_rate()
        self._task.waits_since = 0.0
        self._task.is_running = True

    async def acquire_once(self) -> None:
        """Acquire the slot unless this handler has it: the concurrent steps of a handler share one slot."""
        if not self._task.is_running:
            self._acquiring = self._acquiring or asyncio.Lock()
            async with self._acquiring:
                if not self._is_acquired:
                    await self.acquire()

    def release(self) -> None:
        """Release the slot, if it is acquired."""
        if self._is_acquired:
            self._is_acquired = False
            self._consumer.slots.release()
            self._consumer.record_duration(time.monotonic() - self._acquired_at)

    def report_answer(self, downstream: str) -> None:
        """Report with the task that a downstream answered it."""
        self._consumer.answers.setdefault(self._task.task.task_id, set()).add(downstream)

    def detach(self) -> None:
        """Make `release` do nothing; the owner of the slot releases it in the consumer."""
        self._is_acquired = False


current_slot: ContextVar[Slot | None] = ContextVar("tape_slot", default=None)


async def acquire_slot() -> None:
    """Wait for the slot of this task: for handlers of a consumer that prefetches. Preparing a task needs no slot."""
    slot = current_slot.get()
    if slot is not None:
        await slot.acquire_once()


def release_slot() -> None:
    """Release the slot of this task: recording the result needs no slot."""
    slot = current_slot.get()
    if slot is not None:
        slot.release()


def report_answer(downstream: str) -> None:
    """Report with this task that a downstream answered it."""
    slot = current_slot.get()
    if slot is not None:
        slot.report_answer(downstream)
