"""Batches concurrent calls into few messages.

Calls that arrive while messages are in flight form the next batch. There is no timer: a call that finds fewer than
`MAX_IN_FLIGHT` messages in flight is sent at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")

# Two messages in flight keep both sides busy; more only make the batches smaller.
MAX_IN_FLIGHT = 2


@dataclass(frozen=True, slots=True)
class PendingCall(Generic[Item, Answer]):
    """A call that waits for its answer: the item to send, how many it counts as, its size in bytes, its future."""

    item: Item
    count: int
    size: int
    future: asyncio.Future[Answer]

    def answer(self, answer: Answer) -> None:
        """Return an answer to the caller, unless it was cancelled."""
        if not self.future.done():
            self.future.set_result(answer)

    def fail(self, error: BaseException) -> None:
        """Raise an error in the caller, unless it was cancelled."""
        if not self.future.done():
            self.future.set_exception(error)


SendBatch = Callable[[Sequence[PendingCall[Item, Answer]]], Awaitable[None]]


class CallBatcher(Generic[Item, Answer]):
    """Collects calls and passes batches to `send_batch`, which answers or fails every call and never raises."""

    def __init__(self, send_batch: SendBatch[Item, Answer], *, max_count: int, max_bytes: int) -> None:
        self._send_batch = send_batch
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._waiting: deque[PendingCall[Item, Answer]] = deque()
        self._in_flight = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def send(self, item: Item, count: int, size: int) -> Answer:
        """Send an item that counts as `count` and has `size` bytes; returns its answer."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append(PendingCall(item, count, size, future))
        if self._in_flight < MAX_IN_FLIGHT:
            self._start_sender()
        return await future

    async def flush(self) -> None:
        """Wait until every call has its answer."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _start_sender(self) -> None:
        self._in_flight += 1
        task = asyncio.create_task(self._send_waiting())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_waiting(self) -> None:
        try:
            while self._waiting:
                if calls := self._next_batch():
                    await self._send_batch(calls)
        finally:
            self._in_flight -= 1

    def _next_batch(self) -> list[PendingCall[Item, Answer]]:
        """The oldest waiting calls, as many as fit into one message."""
        calls: list[PendingCall[Item, Answer]] = []
        count = size = 0
        while self._waiting:
            call = self._waiting[0]
            if call.future.done():  # its caller was cancelled before anything was sent
                self._waiting.popleft()
                continue
            count += call.count
            size += call.size
            if calls and (count > self._max_count or size > self._max_bytes):
                break
            calls.append(self._waiting.popleft())
        return calls
