"""Clocks in milliseconds, the unit of all timestamps on the wire and in the tables."""

from __future__ import annotations

import time
from collections.abc import Callable


def now_ms() -> int:
    """Return the wall-clock time in milliseconds since 1970-01-01 UTC."""
    return time.time_ns() // 1_000_000


def steady_ms() -> Callable[[], int]:
    """Return a clock that starts at the wall-clock time and ignores later changes of the system clock."""
    offset = time.time_ns() - time.monotonic_ns()
    return lambda: (offset + time.monotonic_ns()) // 1_000_000
