"""Calls that wait for a server that is coming back: a restart must not end the runs that are under way."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

from tape.errors import LeaseHeld, TapeError

log = logging.getLogger(__name__)

PATIENCE_S = 30.0
_FIRST_PAUSE_S = 0.05
_LAST_PAUSE_S = 1.0


def patiently(call: Callable[..., Any], /, **arguments: Any) -> Any:
    """The result of a call that may be repeated, tried again for a while as long as nobody can answer it."""
    deadline = time.monotonic() + PATIENCE_S
    pause = _FIRST_PAUSE_S
    while True:
        try:
            return call(**arguments)
        except TapeError as error:
            if not error.retryable or isinstance(error, LeaseHeld) or time.monotonic() >= deadline:
                raise
            log.info("waiting to try again: %s", error)
        time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads load, hides nothing
        pause = min(pause * 2, _LAST_PAUSE_S)


async def patiently_async(call: Callable[..., Awaitable[Any]], /, **arguments: Any) -> Any:
    """`patiently` for a coroutine function."""
    deadline = time.monotonic() + PATIENCE_S
    pause = _FIRST_PAUSE_S
    while True:
        try:
            return await call(**arguments)
        except TapeError as error:
            if not error.retryable or isinstance(error, LeaseHeld) or time.monotonic() >= deadline:
                raise
            log.info("waiting to try again: %s", error)
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads load, hides nothing
        pause = min(pause * 2, _LAST_PAUSE_S)
