"""Loops that run until stopped and back off while the server is unavailable."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from tape.base.retry import UNLIMITED, RetryPolicy, with_jitter
from tape.errors import InvalidInput, TapeError

log = logging.getLogger(__name__)

T = TypeVar("T")

MIN_INTERVAL_S = 0.01
JITTER = 0.2  # of intervals and backoff, so that many reactors do not ask at once
RETRY = RetryPolicy(max_attempts=UNLIMITED, initial_interval_s=0.2, max_interval_s=10.0, jitter=JITTER)
STOP_POLL_S = 0.2  # how soon a loop that waits to be woken sees its stop event


def repeat(
    work: Callable[[], T],
    *,
    name: str,
    interval_s: float,
    stop: threading.Event,
    once: bool = False,
    on_result: Callable[[T], None] | None = None,
    wake: threading.Event | None = None,
) -> None:
    """Call `work` every `interval_s` seconds, and at once when woken, until `stop` is set.

    Errors are logged, and retried after a backoff that grows to 10 s. With `once` they are raised.
    """
    if interval_s < 0:
        raise InvalidInput(f"interval_s {interval_s} must not be negative.")
    failures = 0
    while not stop.is_set():
        if wake is not None:
            wake.clear()
        try:
            result = work()
        except Exception as error:
            if once:
                raise
            failures += 1
            _log_failure(name, error, failures)
        else:
            if failures:
                log.warning("%s continues after %d failure(s)", name, failures)
            failures = 0
            if on_result is not None:
                on_result(result)
        if once:
            return
        _wait(interval_s, failures, stop, wake)


def _log_failure(name: str, error: Exception, failures: int) -> None:
    """Log an unavailable server once, and an unexpected error each time with its traceback."""
    if isinstance(error, TapeError) and error.retryable:
        log.log(logging.WARNING if failures == 1 else logging.DEBUG, "%s waits for the server: %s", name, error)
    else:
        log.error("%s failed", name, exc_info=error)


def _wait(interval_s: float, failures: int, stop: threading.Event, wake: threading.Event | None) -> None:
    delay = with_jitter(max(interval_s, MIN_INTERVAL_S), JITTER)
    if failures:
        stop.wait(max(delay, RETRY.delay(failures)))
        return
    if wake is None:
        stop.wait(delay)
        return
    deadline = time.monotonic() + delay
    while not stop.is_set() and (left := deadline - time.monotonic()) > 0 and not wake.wait(min(left, STOP_POLL_S)):
        pass
