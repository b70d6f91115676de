"""The numbers behind retries and rates."""

from __future__ import annotations

import random
from math import ceil

from tape.base.clock import CLOCK_TOLERANCE_MS, latest_ms
from tape.base.retry import RetryPolicy

MAX_BACKOFF_MS = 3_600_000
MAX_DOUBLINGS = 20
# A task is retried up to this much later than its backoff says, and never earlier.
JITTER = 0.2
# A tenth of a second's worth may be handed out at once.
BURST_S = 0.1


def backoff_ms(base_ms: int, attempts: int, random_share: float | None = None) -> int:
    """Milliseconds that a task waits after its `attempts`-th attempt: 1 s, 2 s, 4 s, … 1 h with a base of 1,000.

    Up to 20 % are added at random; `random_share` (0 to 1) is the share of them that is added.
    """
    policy = RetryPolicy(initial_interval_s=base_ms / 1_000, max_interval_s=MAX_BACKOFF_MS / 1_000, jitter=0)
    delay = round(policy.delay(min(attempts, MAX_DOUBLINGS + 1)) * 1_000)
    share = random.random() if random_share is None else random_share  # noqa: S311 - not a secret
    return min(int(delay * (1 + JITTER * share)), MAX_BACKOFF_MS)


def latest_attempt_ms(now: int, debounce_ms: int) -> int:
    """The latest time at which a task can be due; one that is due later was written by a clock that was ahead."""
    return latest_ms(now, max(debounce_ms, MAX_BACKOFF_MS))


def ahead_us(rate_per_s: int, next_us: int, now_us: int) -> int:
    """How far the state of a rate is ahead of now, in microseconds; 0 if it is further ahead than it can be: void."""
    ahead = max(next_us - now_us, 0)
    return ahead if ahead <= _burst_us(rate_per_s) + CLOCK_TOLERANCE_MS * 1_000 else 0


def _burst_us(rate_per_s: int) -> float:
    return max(BURST_S * 1_000_000, 1_000_000 / rate_per_s)


def pace(rate_per_s: int, next_us: int, now_us: int, wanted: int) -> tuple[int, int, int]:
    """How many of `wanted` a rate allows now, the state to keep, and when the next may come, in microseconds.

    `next_us` is when the next would be due if they came evenly; a burst may run ahead of that a little. A `next_us`
    further ahead than a burst and the tolerance for clocks is void.
    """
    interval = 1_000_000 / rate_per_s
    burst = _burst_us(rate_per_s)
    # Differences first: a fraction of a microsecond is lost beside the number of them since 1970.
    ahead = ahead_us(rate_per_s, next_us, now_us)
    allowed = max(min(wanted, int((burst - ahead) / interval)), 0)
    due_after = now_us + ahead + round(allowed * interval)
    return allowed, due_after, max(due_after + ceil(interval - burst), now_us)
