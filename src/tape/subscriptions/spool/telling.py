"""Events that nobody can take now wait beside the messages they are about, and are told in their order."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Sequence

import msgspec

from tape.errors import ApiRefused, TapeError
from tape.subscriptions.events import Event
from tape.subscriptions.spool.backend import Area, SpoolBackend
from tape.subscriptions.spool.spool import Tell

log = logging.getLogger(__name__)

_NAME = "events-"


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
        async with self._turn:
            if not self._has_kept:
                return True
            for key in await self._waiting():
                data = await self._backend.get(Area.CONTROL, key)
                try:
                    await self._tell(msgspec.json.decode(data or b"[]", type=list[Event]))
                except TapeError as error:
                    if not _is_for_good(error):
                        return False
                    # What will never be taken must not keep back what happened since.
                    log.error("Events of a subscription are not taken and let go: %s: %s", error, data)
                await self._backend.delete(Area.CONTROL, [key])
            self._has_kept = False
            return True

    def _key(self) -> str:
        """A name behind all that we gave before."""
        self._last = max(self._last + 1, time.time_ns() // 1_000)
        return f"{_NAME}{self._last:020}-{self._mark}"

    async def _waiting(self) -> list[str]:
        page = await self._backend.page(Area.CONTROL, _NAME, 10_000)
        return [stored.key for stored in page if stored.key.startswith(_NAME)]


def _is_for_good(error: TapeError) -> bool:
    """Whether the same events will be refused again, however often they are told."""
    if isinstance(error, ApiRefused):
        return error.http_status in (400, 404, 413, 422)
    return not error.retryable
