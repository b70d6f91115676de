"""The replay rate: at most `rate_per_sec` messages per second."""

from __future__ import annotations

import asyncio
import time


class ReplayRate:
    """Delays work to keep a rate. Without a rate it never waits."""

    def __init__(self, rate_per_sec: float | None) -> None:
        self._rate = rate_per_sec
        self._free_at = 0.0

    def burst(self, most: int) -> int:
        """The number that may go together: 100 ms worth, so that a low rate is not a burst and a pause."""
        return most if self._rate is None else max(1, min(most, int(self._rate / 10)))

    async def wait(self, count: int) -> None:
        """Wait until `count` messages may go; their time is charged to the next call."""
        if self._rate is None:
            return
        now = time.monotonic()
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)
        self._free_at = max(now, self._free_at) + count / self._rate
