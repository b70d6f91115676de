"""The numbers behind retries and rates."""

from __future__ import annotations

import random
from math import ceil

# No task waits longer than this for its next attempt.
MAX_BACKOFF_MS = 3_600_000
# Later attempts than this wait no longer: the doubling has reached the cap long before.
MAX_DOUBLINGS = 20
# A retry comes up to so much later than the doubling says, so that what failed together does not return together.
JITTER = 0.2
# A tenth of a second's worth may be handed out at once.
BURST_S = 0.1


def backoff_ms(base_ms: int, attempts: int, random_fraction: float | None = None) -> int:
    """How long a task waits after its so-manyth attempt: 1 s, 2 s, 4 s, … with a base of 1,000."""
    delay = min(base_ms << min(max(attempts - 1, 0), MAX_DOUBLINGS), MAX_BACKOFF_MS)
    spread = random.random() if random_fraction is None else random_fraction  # noqa: S311  (nothing secret about it)
    return min(int(delay * (1 + JITTER * spread)), MAX_BACKOFF_MS)


def pace(rate_per_s: int, next_us: int, now_us: int, wanted: int) -> tuple[int, int, int]:
    """How many of `wanted` a rate allows now, the state to keep, and when the next may come, in microseconds.

    `next_us` is when the next would be due if they came evenly; a burst may run ahead of that a little.
    """
    interval = 1_000_000 / rate_per_s
    ahead = max(BURST_S * 1_000_000, interval)
    due = max(next_us, now_us)
    # Differences first: a fraction of a microsecond is lost beside the number of them since 1970.
    allowed = max(min(wanted, int((ahead - (due - now_us)) / interval)), 0)
    due_after = due + round(allowed * interval)
    return allowed, due_after, max(due_after + ceil(interval - ahead), now_us)
