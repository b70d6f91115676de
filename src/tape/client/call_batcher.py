"""Calls of many callers in few messages.

While one message is on its way, callers gather; what has gathered goes out together. Nobody waits
for a timer: a call with nobody beside it leaves at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")

# Two messages on their way keep both sides busy; more only makes the batches smaller.
MAX_IN_FLIGHT = 2


@dataclass(frozen=True, slots=True)
class Caller(Generic[Item, Answer]):
    """Somebody who waits: what it wants sent, how much that is, and where its answer goes."""

    item: Item
    count: int
    size: int
    future: asyncio.Future[Answer]

    def answer(self, answer: Answer) -> None:
        """Give it its answer, unless it has gone away."""
        if not self.future.done():
            self.future.set_result(answer)

    def fail(self, error: Exception) -> None:
        """Give it an error, unless it has gone away."""
        if not self.future.done():
            self.future.set_exception(error)


Deliver = Callable[[Sequence[Caller[Item, Answer]]], Awaitable[None]]


class Gathering(Generic[Item, Answer]):
    """Gathers callers and hands them to `deliver`, which answers every one of them and raises nothing."""

    def __init__(self, deliver: Deliver[Item, Answer], *, max_count: int, max_bytes: int) -> None:
        self._deliver = deliver
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._waiting: deque[Caller[Item, Answer]] = deque()
        self._in_flight = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def send(self, item: Item, count: int, size: int) -> Answer:
        """The answer to an item, which counts as so many and has so many bytes."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append(Caller(item, count, size, future))
        if self._in_flight < MAX_IN_FLIGHT:
            self._depart()
        return await future

    async def flush(self) -> None:
        """Wait until nothing is on its way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _depart(self) -> None:
        self._in_flight += 1
        task = asyncio.create_task(self._run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        try:
            while self._waiting:
                if callers := self._gather():
                    await self._deliver(callers)
        finally:
            self._in_flight -= 1

    def _gather(self) -> list[Caller[Item, Answer]]:
        """Those who still wait, as many as one message takes."""
        callers: list[Caller[Item, Answer]] = []
        count = size = 0
        while self._waiting:
            following = self._waiting[0]
            if following.future.done():  # it has gone away, and nothing was sent for it
                self._waiting.popleft()
                continue
            count += following.count
            size += following.size
            if callers and (count > self._max_count or size > self._max_bytes):
                break
            callers.append(self._waiting.popleft())
        return callers
