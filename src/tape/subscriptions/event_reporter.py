"""Events on their way to a journal that may be out of reach."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from tape.errors import InvalidInput, TapeError
from tape.subscriptions.events import SubscriptionEvent, stamped

log = logging.getLogger(__name__)

# What waits while nobody takes events; more than this, and the oldest are let go, which is logged.
MAX_WAITING = 10_000
AT_ONCE = 500

Write = Callable[[Sequence[SubscriptionEvent]], Awaitable[None]]


class EventReporter:
    """Writes events in their order. While they cannot be written they wait, and whoever tells them goes on."""

    def __init__(self, write: Write, worker_id: str = "") -> None:
        self._write = write
        self._worker_id = worker_id
        self._waiting: deque[SubscriptionEvent] = deque()
        self._turn = asyncio.Lock()
        self.lost = 0

    async def emit(self, events: Sequence[SubscriptionEvent]) -> None:
        """Write events, or keep them for the next time."""
        self._add(events)
        await self.flush()

    async def write(self, events: Sequence[SubscriptionEvent]) -> None:
        """Write events now, behind those that wait; raises if that fails, and these are not kept then."""
        async with self._turn:
            await self._write_waiting()
            await self._write([self._stamped(event) for event in events])

    async def flush(self) -> None:
        """Write what waits, as far as it is taken."""
        if not self._waiting:
            return
        async with self._turn:
            try:
                await self._write_waiting()
            except TapeError as error:
                log.warning("%d events wait to be told: %s", len(self._waiting), error)

    async def _write_waiting(self) -> None:
        while self._waiting:
            some = list(itertools.islice(self._waiting, AT_ONCE))
            try:
                await self._write(some)
            except InvalidInput:
                if len(some) > 1:
                    some = some[:1]  # one that no journal takes must not hold up those behind it
                    await self._write_alone(some[0])
                else:
                    self._let_go(some[0])
            for _ in some:
                self._waiting.popleft()

    async def _write_alone(self, event: SubscriptionEvent) -> None:
        try:
            await self._write([event])
        except InvalidInput:
            self._let_go(event)

    def _let_go(self, event: SubscriptionEvent) -> None:
        self.lost += 1
        log.error("%s about %s cannot be told, no journal takes it", event.event_type, event.ref.path, exc_info=True)

    def _add(self, events: Sequence[SubscriptionEvent]) -> None:
        self._waiting.extend(map(self._stamped, events))
        if (too_many := len(self._waiting) - MAX_WAITING) > 0 and not self._turn.locked():
            for _ in range(too_many):
                self._waiting.popleft()
            self.lost += too_many
            log.error("%d events could not be told and were let go, %d so far", too_many, self.lost)

    def _stamped(self, event: SubscriptionEvent) -> SubscriptionEvent:
        return stamped(event, self._worker_id) if self._worker_id and not event.worker_id else event
