"""Flow limits: a count of messages in flight, and a token bucket for the dispatch rate.

Messages that are not fetched stay at their source: a limit delays messages and never loses one.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Literal, NamedTuple

Reason = Literal["max_in_flight", "dispatch_rate"]

# Shortest wait for a token.
MIN_WAIT_S = 0.02


class Allowance(NamedTuple):
    """How many messages may be fetched now, and the limit that reduced the number.

    With `batch` 0 none may be fetched; `wait_s` is the time until the next token, None if a message in flight must be
    settled first. `has_begun` is true for the first of a series of limited answers, when an event is emitted.
    """

    batch: int
    wait_s: float | None = 0.0
    reason: Reason | None = None
    has_begun: bool = False


class FlowLimiter:
    """The limits of one subscription. Call `allow` before a fetch, `received` and `settled` after it."""

    def __init__(
        self,
        max_in_flight: int | None = None,
        max_dispatch_per_sec: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_in_flight = max_in_flight
        self.max_dispatch_per_sec = max_dispatch_per_sec
        self.in_flight = 0
        self._clock = clock
        self._tokens = float(max_dispatch_per_sec or 0)
        self._filled_at = clock()
        self._is_limited = False
        self._changed = asyncio.Event()

    def allow(self, wanted: int) -> Allowance:
        """How many of `wanted` messages (at least 1) may be fetched now."""
        wanted = max(1, wanted)
        if self.max_in_flight is not None:
            wanted = min(wanted, self.max_in_flight)
        if self.max_dispatch_per_sec is not None:
            wanted = min(wanted, self.max_dispatch_per_sec)
        # Limited means fewer than an idle subscription would get, not fewer than the configured batch.
        slots, tokens = self._free_slots(wanted), self._whole_tokens(wanted)
        batch = min(wanted, slots, tokens)
        if batch == wanted:
            self._is_limited = False
            return Allowance(batch)
        has_begun, self._is_limited = not self._is_limited, True
        if slots <= tokens:
            return Allowance(batch, None if batch == 0 else 0.0, "max_in_flight", has_begun)
        return Allowance(batch, self._seconds_to_token() if batch == 0 else 0.0, "dispatch_rate", has_begun)

    def received(self, messages: int) -> None:
        """Messages were fetched: they are in flight and cost a token each. An empty fetch is free."""
        self.in_flight += messages
        # A source that returns more than requested makes the count negative, so that the rate holds.
        self._tokens -= messages

    def settled(self, messages: int = 1) -> None:
        """Messages were dispatched, spooled or returned to their source."""
        if messages > self.in_flight:
            raise ValueError(f"{messages} messages settled, but only {self.in_flight} are in flight")
        self.in_flight -= messages
        self._changed.set()

    async def wait(self, allowance: Allowance) -> None:
        """Wait for the next token, or until a message is settled."""
        if allowance.wait_s is not None:
            await asyncio.sleep(allowance.wait_s)
            return
        # Nothing can be settled between this and the wait: there is no await between them.
        self._changed.clear()
        await self._changed.wait()

    def _free_slots(self, wanted: int) -> int:
        return wanted if self.max_in_flight is None else max(0, self.max_in_flight - self.in_flight)

    def _whole_tokens(self, wanted: int) -> int:
        rate = self.max_dispatch_per_sec
        if rate is None:
            return wanted
        now = self._clock()
        self._tokens = min(float(rate), self._tokens + (now - self._filled_at) * rate)
        self._filled_at = now
        return max(0, math.floor(self._tokens))

    def _seconds_to_token(self) -> float:
        assert self.max_dispatch_per_sec is not None
        return max(MIN_WAIT_S, (1 - self._tokens) / self.max_dispatch_per_sec)
