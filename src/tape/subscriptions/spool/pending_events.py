"""Events that nobody can take now wait beside the messages they are about, and are told in their order."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

import msgspec

from tape.base.ids import new_suffix
from tape.errors import ApiRefused, SpoolUnavailable, TapeError
from tape.subscriptions.events import SubscriptionEvent
from tape.subscriptions.spool.backend import Area, SpoolBackend
from tape.subscriptions.spool.spool import EmitEvents

log = logging.getLogger(__name__)

_NAME = "events-"
_AT_ONCE = 10_000  # names held at once
_TOGETHER = 20  # what was kept at so many times is told in one request,
_TOGETHER_BYTES = 512 << 10  # if it is not larger than this
_TOGETHER_EVENTS = 500
MAX_IN_MEMORY = 10_000
# A server that takes longer is as good as away: nobody waits for it who has a message to keep.
ANSWER_S = 5.0


class PendingEvents:
    """Tells events; those that cannot be told, because the server is what is away, are kept until it is back.

    An event that was told just before a crash may be told again: a journal that tells an outage twice can be read, one
    that has forgotten it cannot. Where even the place cannot take events, they wait in memory.
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
        self._has_kept = False
        self._keeping = 0
        self._in_memory: list[SubscriptionEvent] = []
        self._last = 0
        self._mark = new_suffix()  # two processes at one place must not take each other's names
        self._turn = asyncio.Lock()

    async def open(self) -> None:
        """Find what an earlier process could not tell."""
        async with self._turn:
            waiting = await self._waiting()
            self._has_kept = bool(waiting)
            # What is kept from now on is told behind that, though the clock may have been set back.
            if waiting and (number := waiting[-1].split("-")[1]).isdigit():
                self._last = max(self._last, int(number))

    async def __call__(self, events: Sequence[SubscriptionEvent]) -> None:
        """Tell events, or keep them: they are safe on return."""
        if not events:
            return
        self._seen(events)
        if self._has_kept:
            await self._keep(events)  # without a turn: whoever catches up may be waiting for a server that hangs
            return
        async with self._turn:
            if not self._has_kept:
                try:
                    async with asyncio.timeout(ANSWER_S):
                        await self._emit(events)
                    return
                except (TapeError, TimeoutError) as error:
                    reason = str(error) or f"no answer in {ANSWER_S:.0f} s"
                    log.warning("What happens to a subscription cannot be told and is kept: %s", reason)
            await self._keep(events)

    async def _keep(self, events: Sequence[SubscriptionEvent]) -> None:
        self._has_kept = True
        self._keeping += 1
        in_memory, self._in_memory = self._in_memory, []
        together = [*in_memory, *events]
        try:
            await self._backend.put(Area.CONTROL, [(self._key(), msgspec.json.encode(together))])
        except SpoolUnavailable as error:
            self._in_memory = together + self._in_memory
            if (too_many := len(self._in_memory) - MAX_IN_MEMORY) > 0:
                del self._in_memory[:too_many]
                log.error("%d events could neither be told nor kept and were let go", too_many)
            log.warning("%d events wait in memory to be told: %s", len(self._in_memory), error)
        finally:
            self._keeping -= 1

    async def catch_up(self) -> bool:
        """Tell what was kept, as far as it goes. Whether nothing waits any more."""
        while True:
            async with self._turn:
                if not self._has_kept:
                    return True
                waiting = await self._waiting()
                if not waiting:
                    return await self._emit_from_memory()
            while waiting:
                # One turn each: who has something new to tell waits for one request, not for all of them.
                async with self._turn:
                    if not await self._emit_some(waiting):
                        return False

    async def _emit_from_memory(self) -> bool:
        """Tell what waits in memory. Whether nothing waits any more, anywhere."""
        while self._in_memory:
            some = self._in_memory[:_TOGETHER_EVENTS]
            if not await self._is_emitted(some):
                return False
            del self._in_memory[: len(some)]
        self._has_kept = self._keeping > 0
        return not self._has_kept

    async def _is_emitted(self, events: Sequence[SubscriptionEvent]) -> bool:
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._emit(events)
        except TimeoutError:
            return False
        except TapeError as error:
            if not _is_for_good(error):
                return False
            log.error("Events of a subscription are not taken and let go: %s: %s", error, events)
        return True

    async def _emit_some(self, waiting: deque[str]) -> bool:
        """Tell what was kept first, as much as goes into one request, and take it from the names. Whether it went."""
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
            if not _is_for_good(error) or not await self._is_each_emitted(some):
                return False
        await self._backend.delete(Area.CONTROL, list(some))
        for _ in some:
            waiting.popleft()
        return True

    async def _is_each_emitted(self, some: Mapping[str, list[SubscriptionEvent]]) -> bool:
        """What will never be taken must not keep back what happened since: it is let go alone."""
        for key, to_emit in some.items():
            if not await self._is_emitted(to_emit):
                return False
            await self._backend.delete(Area.CONTROL, [key])
        return True

    async def _decoded(self, key: str, data: bytes) -> list[SubscriptionEvent]:
        """The events of an object; one that is torn or altered is put aside, and keeps no others back."""
        try:
            return msgspec.json.decode(data, type=list[SubscriptionEvent])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.error("Events that were kept cannot be read and are put aside as %s in quarantine: %s", key, error)
            await self._backend.put(Area.QUARANTINE, [(key, data)])
            return []

    def _key(self) -> str:
        """A name behind all that we gave before."""
        self._last = max(self._last + 1, time.time_ns() // 1_000)
        return f"{_NAME}{self._last:020}-{self._mark}"

    async def _waiting(self) -> deque[str]:
        page = await self._backend.page(Area.CONTROL, _NAME, _AT_ONCE)
        return deque(stored.key for stored in page if stored.key.startswith(_NAME))


def _is_for_good(error: TapeError) -> bool:
    """Whether the same events will be refused again, however often they are told."""
    if isinstance(error, ApiRefused):
        return error.http_status in (400, 404, 413, 422)
    return not error.retryable
