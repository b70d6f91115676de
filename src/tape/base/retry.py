"""How often and how soon something that failed is tried again."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class RetryPolicy:
    """Attempts with growing pauses: by default 3 of them, after 1 s and 2 s, each a tenth shorter or longer.

    `max_attempts` counts the first attempt. A pause is `initial_interval_s * backoff_coefficient ** (n - 1)`
    after the n-th attempt, at most `max_interval_s`, and spread by `jitter` (0.1 is ± 10 %) so that
    many who failed together do not come back together. `non_retryable` wins over `retry_on`.
    """

    max_attempts: int = 3
    initial_interval_s: float = 1.0
    backoff_coefficient: float = 2.0
    max_interval_s: float = 60.0
    jitter: float = 0.1
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    non_retryable: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        for name, least in (("max_attempts", 1), ("initial_interval_s", 0), ("backoff_coefficient", 1), ("jitter", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} {getattr(self, name)!r} must be at least {least}.")
        if self.max_interval_s < 0 or self.jitter > 1:
            raise ValueError("max_interval_s must not be negative, and jitter must be between 0 and 1.")

    def should_retry(self, exc: BaseException, attempt: int) -> bool:
        """Whether another attempt follows the `attempt`-th one (1 is the first), which raised `exc`."""
        if attempt >= self.max_attempts or isinstance(exc, self.non_retryable):
            return False
        return isinstance(exc, self.retry_on)

    def delay(self, attempt: int) -> float:
        """Seconds to wait after the `attempt`-th attempt (1 is the first)."""
        # A large exponent would overflow long after the cap has been reached.
        growth = self.backoff_coefficient ** min(max(attempt, 1) - 1, 63)
        pause = min(self.initial_interval_s * growth, self.max_interval_s)
        return pause * random.uniform(1 - self.jitter, 1 + self.jitter)  # noqa: S311 - spreads load, hides nothing
