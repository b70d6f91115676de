"""A deadline for calls of librdkafka that have none: synchronous commits and close wait for a lost cluster for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

DEADLINE_S = 15.0


def call_within(seconds: float, call: Callable[[], T]) -> T:
    """What the call returns or raises; TimeoutError if it does neither in time.

    The call goes on in a daemon thread, which does not keep the process from exiting.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="tape-kafka-call", daemon=True).start()
    return outcome.result(seconds)
