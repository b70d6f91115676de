"""Coroutines of connectors and agents, waited for by code that is not one.

They run on loops that live as long as the process: a connector may keep an asyncio client from call to call.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import threading
from typing import Any

_lock = threading.Lock()
_loops: dict[tuple[int, str], tuple[asyncio.AbstractEventLoop, threading.Thread]] = {}


def run_to_end(value: Any, *, on: str = "connectors") -> Any:
    """The value itself, or what it leads to if it can be awaited; `on` names the loop that it runs on."""
    if not inspect.isawaitable(value):
        return value
    loop, thread = _loop(on)
    if threading.current_thread() is thread:
        raise RuntimeError(f"This coroutine of the {on} would wait for itself; await what it calls instead.")
    context = contextvars.copy_context()  # so that it belongs to the run and the span of the thread that waits

    async def waiting() -> Any:
        return await value

    async def in_context() -> Any:
        return await loop.create_task(waiting(), context=context)

    return asyncio.run_coroutine_threadsafe(in_context(), loop).result()


def _loop(name: str) -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    with _lock:
        found = _loops.get((os.getpid(), name))  # a fork needs loops of its own
        if found is None:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=loop.run_forever, name=f"tape-{name}", daemon=True)
            thread.start()
            found = _loops[os.getpid(), name] = loop, thread
        return found
