"""Retry with exponential backoff and jitter: one policy, one synchronous and one asyncio loop."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from tape.errors import TapeError

if TYPE_CHECKING:
    from tape.base.process import Event

T = TypeVar("T")

OnRetry = Callable[[Exception, int, float], object]

UNLIMITED = 2**63 - 1
"""`max_attempts` of a policy without a limit."""


@dataclass(frozen=True)
class RetryPolicy:
    """Attempts and the delays between them. The default is 3 attempts, with delays of 1 s and 2 s, each ± 10 %.

    `max_attempts` counts the first attempt. The delay after the n-th attempt is
    `initial_interval_s * backoff_coefficient ** (n - 1)`, at most `max_interval_s`, then varied by `jitter`
    (0.1 is ± 10 %) so that clients that failed together do not retry together. `non_retryable` wins over `retry_on`.
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
        """Whether to retry after the `attempt`-th attempt (1 is the first) raised `exc`."""
        if attempt >= self.max_attempts or isinstance(exc, self.non_retryable):
            return False
        return isinstance(exc, self.retry_on)

    def delay(self, attempt: int) -> float:
        """Seconds to wait after the `attempt`-th attempt (1 is the first)."""
        # A large exponent would overflow long after the cap has been reached.
        growth = self.backoff_coefficient ** min(max(attempt, 1) - 1, 63)
        interval = min(self.initial_interval_s * growth, self.max_interval_s)
        return with_jitter(interval, self.jitter)


def with_jitter(seconds: float, jitter: float) -> float:
    """Return `seconds`, varied at random by up to ± `jitter` (0.1 is 10 %)."""
    return seconds * random.uniform(1 - jitter, 1 + jitter)  # noqa: S311 - not a secret


WHILE_UNAVAILABLE = RetryPolicy(max_attempts=UNLIMITED, initial_interval_s=0.05, max_interval_s=1.0, jitter=0.25)
"""For calls to a server or a database that is unavailable: 0.05 s, 0.1 s, … 1 s, each ± 25 %."""

RECONNECT = RetryPolicy(max_attempts=UNLIMITED, initial_interval_s=0.1, max_interval_s=2.0, jitter=0.25)
"""For streams that a client opens again when the connection is lost: 0.1 s, 0.2 s, … 2 s, each ± 25 %."""


def is_retryable(error: BaseException) -> bool:
    """Whether an error is a TapeError that says that the same call may succeed later."""
    return isinstance(error, TapeError) and error.retryable


class Stop(Protocol):
    """An event that ends a delay early; `threading.Event` is one."""

    def wait(self, timeout: float, /) -> bool:
        """Wait up to `timeout` seconds; True once the event is set."""


class Backoff:
    """The delays of consecutive failures under one policy, for a loop that reconnects again and again."""

    def __init__(self, policy: RetryPolicy) -> None:
        self.policy = policy
        self.failures = 0

    def reset(self) -> None:
        """Start again with the shortest delay, because an attempt succeeded."""
        self.failures = 0

    def next_delay(self, error: BaseException | None = None) -> float:
        """Count a failure; return the seconds to wait, at least as long as the error's `retry_after_s` asks for."""
        self.failures += 1
        return max(self.policy.delay(self.failures), getattr(error, "retry_after_s", None) or 0.0)

    def wait(self, error: BaseException | None = None, *, stop: Stop | None = None) -> bool:
        """Count a failure and wait for its delay; True if `stop` was set meanwhile."""
        return _wait(self.next_delay(error), stop)

    async def wait_async(self, error: BaseException | None = None, *, stop: Event | None = None) -> bool:
        """`wait` for asyncio."""
        return await _wait_async(self.next_delay(error), stop)


def retry(
    call: Callable[[], T],
    policy: RetryPolicy,
    *,
    can_retry: Callable[[Exception], bool] | None = None,
    deadline_s: float | None = None,
    stop: Stop | None = None,
    on_retry: OnRetry | None = None,
) -> T:
    """Return what `call` returns, after as many attempts as the policy allows.

    An error is raised if the policy or `can_retry` rejects it, if `deadline_s` seconds have passed since the first
    attempt, or if `stop` is set during the delay. Before each delay `on_retry` gets the error, the number of the
    failed attempt and the delay in seconds. An error with a `retry_after_s` is retried no sooner than that.
    """
    attempts = _Attempts(policy, can_retry, deadline_s, on_retry)
    while True:
        try:
            return call()
        except Exception as error:
            delay = attempts.next_delay(error)
            if delay is None or _wait(delay, stop):
                raise


async def retry_async(
    call: Callable[[], Awaitable[T]],
    policy: RetryPolicy,
    *,
    can_retry: Callable[[Exception], bool] | None = None,
    deadline_s: float | None = None,
    stop: Event | None = None,
    on_retry: OnRetry | None = None,
) -> T:
    """`retry` for a coroutine function. Cancelling the task ends it at once."""
    attempts = _Attempts(policy, can_retry, deadline_s, on_retry)
    while True:
        try:
            return await call()
        except Exception as error:
            delay = attempts.next_delay(error)
            if delay is None or await _wait_async(delay, stop):
                raise


class _Attempts:
    """The state that both loops share."""

    def __init__(
        self,
        policy: RetryPolicy,
        can_retry: Callable[[Exception], bool] | None,
        deadline_s: float | None,
        on_retry: OnRetry | None,
    ) -> None:
        self._backoff = Backoff(policy)
        self._can_retry = can_retry
        self._deadline = None if deadline_s is None else time.monotonic() + deadline_s
        self._on_retry = on_retry

    def next_delay(self, error: Exception) -> float | None:
        """Seconds until the next attempt, None if there is none."""
        if not self._backoff.policy.should_retry(error, self._backoff.failures + 1):
            return None
        if self._can_retry is not None and not self._can_retry(error):
            return None
        delay = self._backoff.next_delay(error)
        if self._deadline is not None:
            left = self._deadline - time.monotonic()
            if left <= 0:
                return None
            delay = min(delay, left)  # so that the last attempt is made at the deadline
        if self._on_retry is not None:
            self._on_retry(error, self._backoff.failures, delay)
        return delay


def _wait(seconds: float, stop: Stop | None) -> bool:
    if stop is not None:
        return stop.wait(seconds)
    time.sleep(seconds)
    return False


async def _wait_async(seconds: float, stop: Event | None) -> bool:
    from tape.base.process import sleep_until_set  # here, because the session tape uses Backoff without asyncio

    return await sleep_until_set(seconds, stop)
