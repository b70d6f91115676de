"""Limits how often a log line is written when a caller can cause it as often as it likes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable


class ThrottledLog:
    """Writes at most one warning per interval. The next one says how many were left out."""

    def __init__(
        self, log: logging.Logger, interval_s: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._interval_s = interval_s
        self._clock = clock
        self._next = 0.0
        self._omitted = 0

    def warn(self, text: str, *values: object) -> None:
        """Log a warning, or count it if the interval of the last one is not over."""
        now = self._clock()
        if now < self._next:
            self._omitted += 1
            return
        omitted, self._omitted = self._omitted, 0
        self._next = now + self._interval_s
        if omitted:
            text, values = f"{text} (%d similar since the last line)", (*values, omitted)
        self._log.warning(text, *values)
