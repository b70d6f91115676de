"""Events that cannot be written now are stored in the spool's backend and emitted later, in order."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

import msgspec

from tape.base import structs
from tape.base.ids import new_suffix
from tape.errors import ApiRefused, SpoolUnavailable, TapeError
from tape.subscriptions.events import SubscriptionEvent
from tape.subscriptions.spool.backend import Area, SpoolBackend
from tape.subscriptions.spool.spool import EmitEvents

log = logging.getLogger(__name__)

_NAME = "events-"
_AT_ONCE = 10_000  # keys in memory
_TOGETHER = 20  # stored objects that are emitted in one request,
_TOGETHER_BYTES = 512 << 10  # if it is not larger than this
_TOGETHER_EVENTS = 500
MAX_IN_MEMORY = 10_000
# A server that takes longer counts as unavailable, so that spooling a message does not wait for it.
ANSWER_S = 5.0


class PendingEvents:
    """Emits events, and stores those that fail, because the server is unavailable, until it is back.

    After a crash the last events can be emitted twice; none is lost. If the backend is unavailable too, up to 10,000
    events wait in memory.
    """

    def __init__(
        self,
        backend: SpoolBackend,
        emit: EmitEvents,
        seen: Callable[[Sequence[SubscriptionEvent]], None] = lambda events: None,
    ) -> None:
        self._backend = backend
        self._emit = emit
        self._seen = seen
        self._has_stored = False
        self._storing = 0
        self._in_memory: list[SubscriptionEvent] = []
        self._last = 0
        self._suffix = new_suffix()  # two processes on one backend must not use the same key
        self._lock = asyncio.Lock()

    async def open(self) -> None:
        """Find the events that an earlier process stored."""
        async with self._lock:
            waiting = await self._waiting()
            self._has_stored = bool(waiting)
            # New events sort after the stored ones, even if the clock was set back.
            if waiting and (number := waiting[-1].split("-")[1]).isdigit():
                self._last = max(self._last, int(number))

    async def __call__(self, events: Sequence[SubscriptionEvent]) -> None:
        """Emit events, or store them; they are durable on return."""
        if not events:
            return
        self._seen(events)
        if self._has_stored:
            await self._store(events)  # without the lock: catch_up can be waiting for the server
            return
        async with self._lock:
            if not self._has_stored:
                try:
                    async with asyncio.timeout(ANSWER_S):
                        await self._emit(events)
                    return
                except (TapeError, TimeoutError) as error:
                    reason = str(error) or f"no answer in {ANSWER_S:.0f} s"
                    log.warning("Events cannot be written and are stored in the spool: %s", reason)
            await self._store(events)

    async def _store(self, events: Sequence[SubscriptionEvent]) -> None:
        self._has_stored = True
        self._storing += 1
        in_memory, self._in_memory = self._in_memory, []
        together = [*in_memory, *events]
        try:
            await self._backend.put(Area.CONTROL, [(self._key(), msgspec.json.encode(together))])
        except SpoolUnavailable as error:
            self._in_memory = together + self._in_memory
            if (too_many := len(self._in_memory) - MAX_IN_MEMORY) > 0:
                del self._in_memory[:too_many]
                log.error("buffer full: dropped the oldest %d events, which could not be written or stored", too_many)
            log.warning("%d events are buffered in memory: %s", len(self._in_memory), error)
        finally:
            self._storing -= 1

    async def catch_up(self) -> bool:
        """Emit stored events until one fails. Returns whether none is left."""
        while True:
            async with self._lock:
                if not self._has_stored:
                    return True
                waiting = await self._waiting()
                if not waiting:
                    return await self._emit_from_memory()
            while waiting:
                # The lock is held per request, so that a new event waits for one request, not for all of them.
                async with self._lock:
                    if not await self._emit_some(waiting):
                        return False

    async def _emit_from_memory(self) -> bool:
        """Emit the events in memory. Returns whether none is left, in memory or stored."""
        while self._in_memory:
            some = self._in_memory[:_TOGETHER_EVENTS]
            if not await self._is_emitted(some):
                return False
            del self._in_memory[: len(some)]
        self._has_stored = self._storing > 0
        return not self._has_stored

    async def _is_emitted(self, events: Sequence[SubscriptionEvent]) -> bool:
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._emit(events)
        except TimeoutError:
            return False
        except TapeError as error:
            if not is_permanent(error):
                return False
            log.error("The journal rejects events, dropped: %s: %s", error, events)
        return True

    async def _emit_some(self, waiting: deque[str]) -> bool:
        """Emit the oldest stored events in one request and remove them. Returns whether that succeeded."""
        some: dict[str, list[SubscriptionEvent]] = {}
        size = 0
        for key in islice(waiting, _TOGETHER):
            data = await self._backend.get(Area.CONTROL, key) or b"[]"
            if some and size + len(data) > _TOGETHER_BYTES:
                break
            some[key] = await self._decoded(key, data)
            size += len(data)
        together = [event for to_emit in some.values() for event in to_emit]
        try:
            if together:
                async with asyncio.timeout(ANSWER_S):
                    await self._emit(together)
        except TimeoutError:
            return False
        except TapeError as error:
            if not is_permanent(error) or not await self._is_each_emitted(some):
                return False
        await self._backend.delete(Area.CONTROL, list(some))
        for _ in some:
            waiting.popleft()
        return True

    async def _is_each_emitted(self, some: Mapping[str, list[SubscriptionEvent]]) -> bool:
        """Emit objects one by one: events that the journal rejects must not block those after them."""
        for key, to_emit in some.items():
            if not await self._is_emitted(to_emit):
                return False
            await self._backend.delete(Area.CONTROL, [key])
        return True

    async def _decoded(self, key: str, data: bytes) -> list[SubscriptionEvent]:
        """The events of an object; a damaged object is quarantined."""
        try:
            return structs.decode(data, list[SubscriptionEvent])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.error("Stored events are damaged, quarantined as %s: %s", key, error)
            await self._backend.put(Area.QUARANTINE, [(key, data)])
            return []

    def _key(self) -> str:
        """A key that sorts after all earlier ones."""
        self._last = max(self._last + 1, time.time_ns() // 1_000)
        return f"{_NAME}{self._last:020}-{self._suffix}"

    async def _waiting(self) -> deque[str]:
        page = await self._backend.page(Area.CONTROL, _NAME, _AT_ONCE)
        return deque(stored.key for stored in page if stored.key.startswith(_NAME))


def is_permanent(error: TapeError) -> bool:
    """Whether the journal rejects the same events on every retry."""
    if isinstance(error, ApiRefused):
        return error.http_status in (400, 404, 413, 422)
    return not error.retryable
