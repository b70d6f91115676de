"""An in-memory source for tests without a broker, with the guarantees of a broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from tape.brokers.settings import SourceSettings
from tape.brokers.source import Delivery, Source
from tape.errors import SourceMissing, SourceUnavailable


class MemorySource(Source):
    """A queue. `publish` adds a message; while `is_down` nothing can be fetched or settled."""

    def __init__(self, settings: SourceSettings | None = None) -> None:
        self.is_down = False
        self.published = 0
        self._waiting: list[tuple[float, Delivery]] = []
        self._delivered: dict[str, Delivery] = {}
        self._is_open = False
        self._news = asyncio.Event()

    def publish(self, body: bytes, headers: Sequence[tuple[str, str]] = (), ordering_key: str = "") -> str:
        """Add a message; its id."""
        self.published += 1
        name = str(self.published)
        self._waiting.append((0.0, Delivery(name, body, name, tuple(headers), {}, ordering_key)))
        self._news.set()
        return name

    @property
    def unsettled(self) -> int:
        """Messages that wait or are delivered and not settled."""
        return len(self._waiting) + len(self._delivered)

    async def open(self) -> None:
        """Connect; messages that an earlier reader has not settled are redelivered."""
        self._check()
        self._is_open = True
        await self.nack(list(self._delivered))

    async def poll(self, limit: int, wait_s: float) -> list[Delivery]:
        """The oldest messages whose delay has passed."""
        self._check()
        if not self._is_open:
            raise SourceUnavailable("The source in memory is not open.")
        if not self._due():
            self._news.clear()
            soonest = min((at - time.monotonic() for at, _ in self._waiting), default=wait_s)
            try:
                await asyncio.wait_for(self._news.wait(), min(max(soonest, 0.0), wait_s))
            except TimeoutError:
                pass
        self._check()
        found = self._due()[:limit]
        taken = {id(each) for each in found}
        self._waiting = [each for each in self._waiting if id(each) not in taken]
        self._delivered |= {delivery.receipt: delivery for _, delivery in found}
        return [delivery for _, delivery in found]

    async def ack(self, receipts: Sequence[str]) -> None:
        """Remove these messages."""
        self._check()
        for receipt in receipts:
            self._remove_delivered(receipt)

    async def nack(self, receipts: Sequence[str], delay_s: float = 0.0) -> None:
        """Put these messages back at the front."""
        self._check()
        back = [self._remove_delivered(receipt) for receipt in receipts]
        again = [(time.monotonic() + delay_s, replace(each, deliveries=each.deliveries + 1)) for each in back]
        self._waiting[:0] = again
        self._news.set()

    async def lag(self) -> int | None:
        """Messages that wait."""
        return len(self._waiting)

    async def close(self) -> None:
        """Disconnect; unsettled messages are redelivered after the next open."""
        self._is_open = False

    def _due(self) -> list[tuple[float, Delivery]]:
        now = time.monotonic()
        return [each for each in self._waiting if each[0] <= now]

    def _remove_delivered(self, receipt: str) -> Delivery:
        if receipt not in self._delivered:
            raise SourceMissing(f"subscription[memory]: {receipt!r} is not a receipt of an unsettled message.")
        return self._delivered.pop(receipt)

    def _check(self) -> None:
        if self.is_down:
            raise SourceUnavailable("The source in memory is down.")
