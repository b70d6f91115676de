"""Events that nobody can take now wait beside the messages they are about, and are told in their order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from tape.errors import TapeError
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

    def __init__(self, backend: SpoolBackend, tell: Tell) -> None:
        self._backend = backend
        self._tell = tell
        self._kept = 0  # newest number of what waits; 0 if nothing does
        self._turn = asyncio.Lock()

    async def open(self) -> None:
        """Find what an earlier process could not tell."""
        async with self._turn:
            for stored in await self._waiting():
                self._kept = max(self._kept, int(stored.removeprefix(_NAME)))

    async def __call__(self, events: Sequence[Event]) -> None:
        """Tell events, or keep them: they are safe on return."""
        async with self._turn:
            if not self._kept:
                try:
                    await self._tell(events)
                    return
                except TapeError as error:
                    log.warning("What happens to a subscription cannot be told and is kept: %s", error)
            self._kept += 1
            await self._backend.put(Area.CONTROL, [(f"{_NAME}{self._kept:020}", msgspec.json.encode(list(events)))])

    async def catch_up(self) -> bool:
        """Tell what was kept, as far as it goes. Whether nothing waits any more."""
        async with self._turn:
            if not self._kept:
                return True
            for key in await self._waiting():
                data = await self._backend.get(Area.CONTROL, key)
                try:
                    await self._tell(msgspec.json.decode(data or b"[]", type=list[Event]))
                except TapeError:
                    return False
                await self._backend.delete(Area.CONTROL, [key])
            self._kept = 0
            return True

    async def _waiting(self) -> list[str]:
        page = await self._backend.page(Area.CONTROL, _NAME, 10_000)
        return [stored.key for stored in page if stored.key.startswith(_NAME)]
