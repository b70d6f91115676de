"""Run coroutines of connectors and agents from synchronous code.

They run on event loops that live as long as the process, so that a connector may keep an asyncio client between calls.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loops: dict[tuple[int, str], tuple[asyncio.AbstractEventLoop, threading.Thread]] = {}


def run_to_end(value: Any, *, on: str = "connectors") -> Any:
    """Return the value, or its result if it is awaitable; `on` names the event loop that it runs on."""
    if not inspect.isawaitable(value):
        return value
    loop, thread = _loop(on)
    if threading.current_thread() is thread:
        raise RuntimeError(f"This coroutine of the {on} would wait for itself; await it instead.")
    context = contextvars.copy_context()  # the run and the span of the calling thread

    async def waiting() -> Any:
        return await value

    async def in_context() -> Any:
        return await loop.create_task(waiting(), context=context)

    return asyncio.run_coroutine_threadsafe(in_context(), loop).result()


async def finish_in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """`asyncio.to_thread` for work that must not be left half done: a cancelled caller waits until it has ended."""
    work = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        if not work.done():
            await asyncio.wait([work])
        if not work.cancelled():
            work.exception()  # the caller was cancelled: it has no use for it
        raise


def _loop(name: str) -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    with _lock:
        found = _loops.get((os.getpid(), name))  # a forked process needs its own loops
        if found is None:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=loop.run_forever, name=f"tape-{name}", daemon=True)
            thread.start()
            found = _loops[os.getpid(), name] = loop, thread
        return found
