"""Measures how late the event loop runs what is due: everything on it waits while one handler computes."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from types import FrameType

from tape.base.telemetry.metrics import Metrics
from tape.base.telemetry.throttle import ThrottledLog

# Seconds between two measurements.
INTERVAL_S = 0.1
# Seconds of lag from which it is logged.
LOGGED_S = 0.25
# Frames of the stack that the log line shows, innermost last.
SHOWN_FRAMES = 6


class LoopLag:
    """Observes the lag of the running loop, and logs what ran when it was long. Use `start` and `close`.

    The loop itself measures the lag. What ran is known only while it runs, so a thread looks at the loop's stack when a
    measurement is overdue.
    """

    def __init__(self, metrics: Metrics, log: logging.Logger | None = None) -> None:
        self._seconds = metrics.loop_lag_seconds
        self._log = ThrottledLog(log or logging.getLogger(__name__))
        self._due = 0.0
        self._what = ""
        self._thread_id = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = threading.Event()
        self._watcher: threading.Thread | None = None

    def start(self) -> None:
        """Begin to measure the running loop."""
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._schedule()
        self._watcher = threading.Thread(target=self._watch, name="tape-loop-lag", daemon=True)
        self._watcher.start()

    def close(self) -> None:
        """Stop measuring."""
        self._is_closed.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._watcher is not None:
            self._watcher.join()
            self._watcher = None

    def _schedule(self) -> None:
        self._due = time.monotonic() + INTERVAL_S
        self._timer = self._loop.call_later(INTERVAL_S, self._measure)

    def _measure(self) -> None:
        lag = max(time.monotonic() - self._due, 0.0)
        self._seconds.observe(lag)
        what, self._what = self._what, ""
        if lag >= LOGGED_S:
            self._log.warn("the event loop was blocked for %.0f ms by %s", lag * 1e3, what or "an unknown call")
        self._schedule()

    def _watch(self) -> None:
        while not self._is_closed.wait(INTERVAL_S):
            if time.monotonic() - self._due >= INTERVAL_S and not self._what:
                frame = sys._current_frames().get(self._thread_id)
                if frame is not None:
                    self._what = describe_stack(frame)


def describe_stack(frame: FrameType) -> str:
    """The innermost calls of a stack as `file:line function`, outermost first."""
    stack = traceback.extract_stack(frame, limit=None)[-SHOWN_FRAMES:]
    return " > ".join(f"{_short(call.filename)}:{call.lineno} {call.name}" for call in stack)


def _short(path: str) -> str:
    """A path without the folders that differ between machines."""
    _, found, rest = path.rpartition("site-packages/")
    return rest if found else "/".join(path.split("/")[-3:])
