"""Threads for handlers that block."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any


class Threads:
    """Runs calls on threads; a new one is started when none is idle.

    They are daemon threads: a handler that hangs cannot keep a stopping process alive.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = queue.SimpleQueue()
        self._idle = 0
        self._made = 0
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()

    def submit(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        """The future result of a call. Cancelling it does not stop the call."""
        future: asyncio.Future[Any] = self._loop.create_future()
        with self._lock:
            is_idle = self._idle > 0
            if is_idle:
                self._idle -= 1
            elif self._made < self._most:
                self._made += 1
                threading.Thread(target=self._work, name=f"tape-handler-{self._made}", daemon=True).start()
        self._calls.put((call, future))
        return future

    def close(self) -> None:
        """Let idle threads end; busy ones end after their call."""
        for _ in range(self._made):
            self._calls.put(None)

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            call, future = item
            try:
                result, error = call(), None
            except BaseException as raised:
                result, error = None, raised
            with self._lock:
                self._idle += 1
            with contextlib.suppress(RuntimeError):  # the loop is closed: the result has no receiver
                self._loop.call_soon_threadsafe(_resolve, future, result, error)
            del call, future, result, error, item


def _resolve(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
