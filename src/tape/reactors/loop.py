"""Loops that go on until they are told to stop, outlive a server that is away, and never spin."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from tape.errors import InvalidInput, TapeError

log = logging.getLogger(__name__)

T = TypeVar("T")

SHORTEST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 10.0
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
        _pause(interval_s, failures, stop, wake)


def _complain(name: str, error: Exception, failures: int) -> None:
    """A server that is away is said once; what nobody expects is said each time, with where it happened."""
    if isinstance(error, TapeError) and error.retryable:
        log.log(logging.WARNING if failures == 1 else logging.DEBUG, "%s waits: %s", name, error)
    else:
        log.error("%s failed", name, exc_info=error)


def _pause(interval_s: float, failures: int, stop: threading.Event, wake: threading.Event | None) -> None:
    pause = max(interval_s, SHORTEST_PAUSE_S)
    if failures:
        pause = max(pause, min(0.1 * 2 ** min(failures, 10), LONGEST_PAUSE_S))
    pause *= random.uniform(0.8, 1.2)  # noqa: S311 - many reactors should not all come at once
    if wake is None or failures:
        stop.wait(pause)
        return
    deadline = time.monotonic() + pause
    while not stop.is_set() and (left := deadline - time.monotonic()) > 0 and not wake.wait(min(left, NOTICE_S)):
        pass
