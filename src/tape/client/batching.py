"""Appends of many callers in few messages.

While one message is on its way, callers gather; what has gathered goes out together. Nobody waits
for a timer: an append with nobody beside it leaves at once.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from tape.errors import InvalidInput, TapeError
from tape.journal.entry import Draft

MAX_DRAFTS = 512
MAX_BYTES = 2 << 20
# Two messages on their way keep both sides busy; more only makes the batches smaller.
MAX_IN_FLIGHT = 2
ATTEMPTS = 4
FIRST_RETRY_S = 0.05

Send = Callable[[Sequence[Draft], str], Awaitable[list[int]]]


class _Caller(NamedTuple):
    drafts: Sequence[Draft]
    size: int
    future: asyncio.Future[list[int]]


class Batcher:
    """Gathers appends and sends them; a request id makes a retry harmless."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: deque[_Caller] = deque()
        self._in_flight = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Append drafts, all or none; their `global_seq`s once they are durable."""
        size = sum(len(draft.payload_json) for draft in drafts)
        future: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Caller(drafts, size, future))
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
                await self._deliver(self._gather())
        finally:
            self._in_flight -= 1

    def _gather(self) -> list[_Caller]:
        """Those who wait, as many as one message takes."""
        callers = [self._waiting.popleft()]
        drafts, size = len(callers[0].drafts), callers[0].size
        while self._waiting:
            following = self._waiting[0]
            drafts += len(following.drafts)
            size += following.size
            if drafts > MAX_DRAFTS or size > MAX_BYTES:
                break
            callers.append(self._waiting.popleft())
        return callers

    async def _deliver(self, callers: list[_Caller]) -> None:
        try:
            # Beginning with the time, ids of one day lie side by side in the server's index.
            request_id = f"{time.time_ns():016x}-{secrets.token_hex(8)}"
            seqs = await self.send_surely([draft for caller in callers for draft in caller.drafts], request_id)
        except Exception as error:
            if len(callers) > 1 and isinstance(error, InvalidInput):
                # Refused, so nothing was written: one bad draft must not fail those it travelled with.
                # After any other error the request may have been carried out and must not get a new id.
                for caller in callers:
                    await self._deliver([caller])
                return
            for caller in callers:
                if not caller.future.done():
                    caller.future.set_exception(error)
            return
        start = 0
        for caller in callers:
            end = start + len(caller.drafts)
            if not caller.future.done():
                caller.future.set_result(seqs[start:end])
            start = end

    async def send_surely(self, drafts: Sequence[Draft], request_id: str) -> list[int]:
        """Send one request, and again after a failure that may pass."""
        pause = FIRST_RETRY_S
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await self._send(drafts, request_id)
            except TapeError as error:
                if not error.retryable or attempt == ATTEMPTS:
                    raise
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311
            pause *= 2
        raise AssertionError("unreachable")
