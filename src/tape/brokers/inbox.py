"""The inbox of a source whose broker pushes messages: received, delivered to the caller, waiting for a redelivery.

Such a broker keeps every message until it is acknowledged and sends it again after the connection ends. A negative
acknowledgement therefore redelivers from memory: the message keeps its id, and a crash loses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from tape.brokers.source import Delivery

# One poll returns no more than this, but at least one message.
MAX_POLL_BYTES = 16 << 20


class Inbox:
    """Unsettled messages by receipt, in the order of their arrival."""

    def __init__(self) -> None:
        self._waiting: deque[Delivery] = deque()
        self._delivered: dict[str, Delivery] = {}
        # Waiting messages that must not be delivered before this time (monotonic).
        self._due: dict[str, float] = {}
        # Receipts that the caller had and that will be delivered again.
        self._put_back: set[str] = set()
        self._news = asyncio.Event()

    def put(self, delivery: Delivery) -> None:
        """Add a message from the broker."""
        self._waiting.append(delivery)
        self._news.set()

    def wake(self) -> None:
        """Let a poll look again, for example because the connection was lost."""
        self._news.set()

    async def take(self, limit: int, wait_s: float, is_lost: Callable[[], bool]) -> list[Delivery]:
        """Up to `limit` messages as soon as there is one; none after `wait_s` seconds, or when `is_lost`."""
        until = time.monotonic() + wait_s
        while not (found := self._take_due(limit)) and not is_lost():
            now = time.monotonic()
            soonest = min([until, *self._due.values()])
            if now >= until:
                break
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), max(soonest - now, 0.001))
        return found

    def settle(self, receipt: str) -> Delivery | None:
        """Remove an unsettled message; None if there is none with this receipt."""
        if (found := self._delivered.pop(receipt, None)) is not None:
            return found
        self._put_back.discard(receipt)
        self._due.pop(receipt, None)
        found = next((each for each in self._waiting if each.receipt == receipt), None)
        if found is not None:
            self._waiting.remove(found)
        return found

    def redeliver(self, receipts: list[str], delay_s: float) -> None:
        """Put delivered messages back, with the later ones of the same ordering keys, which must not overtake them."""
        wanted, keys = set(receipts), set()
        back: list[Delivery] = []
        for receipt, each in list(self._delivered.items()):
            if receipt in wanted or each.ordering_key in keys:
                del self._delivered[receipt]
                if each.ordering_key:
                    keys.add(each.ordering_key)
                # Only what was refused counts as another delivery.
                back.append(replace(each, deliveries=each.deliveries + 1) if receipt in wanted else each)
        if delay_s > 0:
            self._due |= dict.fromkeys((each.receipt for each in back), time.monotonic() + delay_s)
        self._put_back.update(each.receipt for each in back)
        self._waiting.extendleft(reversed(back))
        self._news.set()

    def is_put_back(self, receipt: str) -> bool:
        """Whether a message was put back and will be delivered again."""
        return receipt in self._put_back

    def drain(self) -> list[Delivery]:
        """Remove and return the messages that are not with the caller."""
        found = list(self._waiting)
        self._waiting.clear()
        self._due.clear()
        return found

    def clear(self) -> list[Delivery]:
        """Remove and return all messages; the broker sends them again."""
        found = [*self._delivered.values(), *self.drain()]
        self._delivered.clear()
        self._put_back.clear()
        self._news.set()
        return found

    def _take_due(self, limit: int) -> list[Delivery]:
        now, size = time.monotonic(), 0
        found: list[Delivery] = []
        left: deque[Delivery] = deque()
        delayed_keys: set[str] = set()
        while self._waiting and len(found) < limit and (not found or size < MAX_POLL_BYTES):
            each = self._waiting.popleft()
            if self._due.get(each.receipt, 0.0) > now or each.ordering_key in delayed_keys:
                left.append(each)
                if each.ordering_key:
                    delayed_keys.add(each.ordering_key)
                continue
            self._due.pop(each.receipt, None)
            self._put_back.discard(each.receipt)
            size += len(each.body or b"")
            found.append(each)
            self._delivered[each.receipt] = each
        left.extend(self._waiting)
        self._waiting = left
        return found
