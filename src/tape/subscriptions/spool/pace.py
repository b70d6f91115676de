"""Not faster than so many a second."""

from __future__ import annotations

import asyncio
import time


class ReplayRate:
    """Spaces out work by count. Without a rate it never waits."""

    def __init__(self, rate_per_sec: float | None) -> None:
        self._rate = rate_per_sec
        self._free_at = 0.0

    def at_once(self, most: int) -> int:
        """How many may go together: a tenth of a second's worth, so that a low rate is not a burst and a pause."""
        return most if self._rate is None else max(1, min(most, int(self._rate / 10)))

    async def wait(self, count: int) -> None:
        """Return when so many may go; what they take up is charged to whoever comes next."""
        if self._rate is None:
            return
        now = time.monotonic()
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)
        self._free_at = max(now, self._free_at) + count / self._rate
