"""The time, in the unit that everything on the wire and in the tables has."""

from __future__ import annotations

import time
from collections.abc import Callable


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def steady_ms() -> Callable[[], int]:
    """A clock that begins with the time of now and then only runs: it does not jump when the system's clock is set."""
    began = time.time_ns() - time.monotonic_ns()
    return lambda: (began + time.monotonic_ns()) // 1_000_000
