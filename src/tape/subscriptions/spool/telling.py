"""Events that nobody can take now wait beside the messages they are about, and are told in their order."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

import msgspec

from tape.errors import ApiRefused, TapeError
from tape.subscriptions.events import Event
from tape.subscriptions.spool.backend import Area, SpoolBackend
from tape.subscriptions.spool.spool import Tell

log = logging.getLogger(__name__)

_NAME = "events-"
_AT_ONCE = 10_000  # names held at once
_TOGETHER = 20  # what was kept at so many times is told in one request,
_TOGETHER_BYTES = 512 << 10  # if it is not larger than this


class Telling:
    """Tells events; those that cannot be told, because the server is what is away, are kept until it is back.

    An event that was told just before a crash may be told again: a journal that tells an outage twice can be read, one
    that has forgotten it cannot.
    """

    def __init__(
        self, backend: SpoolBackend, tell: Tell, seen: Callable[[Sequence[Event]], None] = lambda events: None
    ) -> None:
        self._backend = backend
        self._tell = tell
        self._seen = seen
        self._has_kept = False
        self._last = 0
        self._mark = uuid.uuid4().hex[:8]  # two processes at one place must not take each other's names
        self._turn = asyncio.Lock()

    async def open(self) -> None:
        """Find what an earlier process could not tell."""
        async with self._turn:
            self._has_kept = bool(await self._waiting())

    async def __call__(self, events: Sequence[Event]) -> None:
        """Tell events, or keep them: they are safe on return."""
        if not events:
            return
        self._seen(events)
        async with self._turn:
            if not self._has_kept:
                try:
                    await self._tell(events)
                    return
                except TapeError as error:
                    log.warning("What happens to a subscription cannot be told and is kept: %s", error)
            await self._backend.put(Area.CONTROL, [(self._key(), msgspec.json.encode(list(events)))])
            self._has_kept = True

    async def catch_up(self) -> bool:
        """Tell what was kept, as far as it goes. Whether nothing waits any more."""
        while True:
            async with self._turn:
                if not self._has_kept:
                    return True
                waiting = await self._waiting()
                if not waiting:
                    self._has_kept = False
                    return True
            while waiting:
                # One turn each: who has something new to tell waits for one request, not for all of them.
                async with self._turn:
                    if not await self._tell_some(waiting):
                        return False

    async def _tell_some(self, waiting: deque[str]) -> bool:
        """Tell what was kept first, as much as goes into one request, and take it from the names. Whether it went."""
        some: dict[str, list[Event]] = {}
        size = 0
        for key in islice(waiting, _TOGETHER):
            data = await self._backend.get(Area.CONTROL, key) or b"[]"
            if some and size + len(data) > _TOGETHER_BYTES:
                break
            some[key] = msgspec.json.decode(data, type=list[Event])
            size += len(data)
        try:
            try:
                await self._tell([event for told in some.values() for event in told])
            except TapeError as error:
                if not _is_for_good(error):
                    return False
                await self._tell_each(some)
        except TapeError:
            return False
        await self._backend.delete(Area.CONTROL, list(some))
        for _ in some:
            waiting.popleft()
        return True

    async def _tell_each(self, some: Mapping[str, list[Event]]) -> None:
        """What will never be taken must not keep back what happened since: it is let go alone."""
        for key, told in some.items():
            try:
                await self._tell(told)
            except TapeError as error:
                if not _is_for_good(error):
                    raise
                log.error("Events of a subscription are not taken and let go: %s: %s", error, told)
            await self._backend.delete(Area.CONTROL, [key])

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
