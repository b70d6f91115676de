"""Clocks in milliseconds, the unit of all timestamps on the wire and in the tables."""

from __future__ import annotations

import time
from collections.abc import Callable

# The clocks of two servers may differ by this much. A stored time further ahead than its own maximum and this much
# was written while a clock was wrong, and is void.
CLOCK_TOLERANCE_MS = 10_000
# The latest time that the tables can store.
MAX_TIME_MS = (1 << 63) - 1


def now_ms() -> int:
    """Return the wall-clock time in milliseconds since 1970-01-01 UTC."""
    return time.time_ns() // 1_000_000


def latest_ms(now: int, max_ahead_ms: int = 0) -> int:
    """The latest time that a clock can have written now, for something at most `max_ahead_ms` ahead."""
    return min(now + max_ahead_ms + CLOCK_TOLERANCE_MS, MAX_TIME_MS)


def steady_ms() -> Callable[[], int]:
    """Return a clock that starts at the wall-clock time and ignores later changes of the system clock."""
    offset = time.time_ns() - time.monotonic_ns()
    return lambda: (offset + time.monotonic_ns()) // 1_000_000
