"""Coroutines of connectors, waited for by code that is not one.

They run on one loop that lives as long as the process: a connector may keep an asyncio client from call to call.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from typing import Any

_lock = threading.Lock()
_loops: dict[int, tuple[asyncio.AbstractEventLoop, threading.Thread]] = {}


def run_to_end(value: Any) -> Any:
    """The value itself, or what it leads to if it can be awaited."""
    if not inspect.isawaitable(value):
        return value

    async def waiting() -> Any:
        return await value

    loop, thread = _loop()
    if threading.current_thread() is thread:
        raise RuntimeError("A connector's coroutine cannot wait for another connector by calling it; await it.")
    return asyncio.run_coroutine_threadsafe(waiting(), loop).result()


def _loop() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    with _lock:
        found = _loops.get(os.getpid())  # a fork needs a loop of its own
        if found is None:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=loop.run_forever, name="tape-connectors", daemon=True)
            thread.start()
            found = _loops[os.getpid()] = loop, thread
        return found
