"""Places: who may act. A handler that takes its place itself can prepare before it, and write down after it."""

from __future__ import annotations

import asyncio
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tape.reactions.consumer import Held, Line


class Place:
    """The right to act on one task: as many have it at a time as the reaction allows."""

    def __init__(self, line: Line, held: Held) -> None:
        self._line = line
        self._held = held
        self._since = 0.0
        self._is_taken = False
        self._taking: asyncio.Lock | None = None

    async def take(self) -> None:
        """Wait for it."""
        self._held.waits_since = time.monotonic()
        await self._line.places.acquire()
        self._is_taken = True
        self._since = time.monotonic()
        await self._line.keep_pace()
        self._held.waits_since = 0.0
        self._held.is_running = True

    async def take_once(self) -> None:
        """Wait for it, or go on: what a handler does at the same time has one place all together."""
        if not self._held.is_running:
            self._taking = self._taking or asyncio.Lock()
            async with self._taking:
                if not self._is_taken:
                    await self.take()

    def leave(self) -> None:
        """Let the next one act."""
        if self._is_taken:
            self._is_taken = False
            self._line.places.release()
            self._line.took(time.monotonic() - self._since)

    def keep(self) -> None:
        """Never let go of it: whoever it is kept for releases the line's place."""
        self._is_taken = False


current_place: ContextVar[Place | None] = ContextVar("tape_place", default=None)


async def take_place() -> None:
    """For the handler of a line that fetches ahead: wait for the right to act. What only prepares needs none."""
    place = current_place.get()
    if place is not None:
        await place.take_once()


def leave_place() -> None:
    """For a handler that has acted: what is left is to write that down, and needs no place."""
    place = current_place.get()
    if place is not None:
        place.leave()
