"""Writes events to a journal that can be unavailable, in order."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from tape.errors import InvalidInput, TapeError
from tape.subscriptions.events import SubscriptionEvent, stamped

log = logging.getLogger(__name__)

# Events buffered in memory while the journal is unavailable. Beyond it the oldest are dropped and logged.
MAX_WAITING = 10_000
AT_ONCE = 500

Write = Callable[[Sequence[SubscriptionEvent]], Awaitable[None]]


class EventReporter:
    """Writes events in order. While the journal is unavailable it buffers up to 10,000 of them; callers do not wait."""

    def __init__(self, write: Write, worker_id: str = "") -> None:
        self._write = write
        self._worker_id = worker_id
        self._waiting: deque[SubscriptionEvent] = deque()
        self._turn = asyncio.Lock()
        self.lost = 0

    async def emit(self, events: Sequence[SubscriptionEvent]) -> None:
        """Write events, or buffer them for the next call."""
        self._add(events)
        await self.flush()

    async def write(self, events: Sequence[SubscriptionEvent]) -> None:
        """Write events now, after the buffered ones. Raises if that fails; these events are not buffered then."""
        async with self._turn:
            await self._write_waiting()
            await self._write([self._stamped(event) for event in events])

    async def flush(self) -> None:
        """Write the buffered events; those that fail stay in the buffer."""
        if not self._waiting:
            return
        async with self._turn:
            try:
                await self._write_waiting()
            except TapeError as error:
                log.warning("%d events are buffered: %s", len(self._waiting), error)

    async def _write_waiting(self) -> None:
        while self._waiting:
            some = list(itertools.islice(self._waiting, AT_ONCE))
            try:
                await self._write(some)
            except InvalidInput:
                if len(some) > 1:
                    some = some[:1]  # an invalid event must not block those after it
                    await self._write_alone(some[0])
                else:
                    self._drop(some[0])
            for _ in some:
                self._waiting.popleft()

    async def _write_alone(self, event: SubscriptionEvent) -> None:
        try:
            await self._write([event])
        except InvalidInput:
            self._drop(event)

    def _drop(self, event: SubscriptionEvent) -> None:
        self.lost += 1
        log.error("%s of %s dropped: the journal rejects it", event.event_type, event.ref.path, exc_info=True)

    def _add(self, events: Sequence[SubscriptionEvent]) -> None:
        self._waiting.extend(map(self._stamped, events))
        if (too_many := len(self._waiting) - MAX_WAITING) > 0 and not self._turn.locked():
            for _ in range(too_many):
                self._waiting.popleft()
            self.lost += too_many
            log.error("buffer full: dropped the oldest %d events, %d in total", too_many, self.lost)

    def _stamped(self, event: SubscriptionEvent) -> SubscriptionEvent:
        return stamped(event, self._worker_id) if self._worker_id and not event.worker_id else event
