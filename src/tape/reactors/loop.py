"""Loops that go on until they are told to stop, outlive a server that is away, and never spin."""

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
NOTICE_S = 0.2  # how soon a loop that waits to be woken sees that it is to stop


def repeat(
    work: Callable[[], T],
    *,
    name: str,
    interval_s: float,
    stop: threading.Event,
    once: bool = False,
    tell: Callable[[T], None] | None = None,
    wake: threading.Event | None = None,
) -> None:
    """Do something every `interval_s` seconds, and at once when woken, until `stop` is set.

    What goes wrong is logged, and tried again after a pause that grows to ten seconds. With `once` it is raised.
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
            _complain(name, error, failures)
        else:
            if failures:
                log.warning("%s goes on after %d failure(s)", name, failures)
            failures = 0
            if tell is not None:
                tell(result)
        if once:
            return
        _wait(interval_s, failures, stop, wake)


def _complain(name: str, error: Exception, failures: int) -> None:
    """A server that is away is said once; what nobody expects is said each time, with where it happened."""
    if isinstance(error, TapeError) and error.retryable:
        log.log(logging.WARNING if failures == 1 else logging.DEBUG, "%s waits: %s", name, error)
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
    while not stop.is_set() and (left := deadline - time.monotonic()) > 0 and not wake.wait(min(left, NOTICE_S)):
        pass
