"""Stop a process on SIGTERM and SIGINT."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import Any, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

Event = asyncio.Event | threading.Event

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
EVENT_POLL_S = 0.05


@contextlib.contextmanager
def stop_on_signal(stop: Callable[[], object], *, interrupts: bool = True) -> Iterator[None]:
    """Call `stop` at the first SIGTERM or SIGINT while the block runs.

    The second signal interrupts the block: it cancels the current task if an event loop runs, and raises
    KeyboardInterrupt otherwise. The third has its default effect. With `interrupts=False` further signals are
    ignored until the block ends. Only the main thread receives signals; in another thread nothing is set up.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = _running_loop()
    task = asyncio.current_task() if loop is not None else None
    is_stopping = False
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            if loop is not None:
                loop.remove_signal_handler(number)
            signal.signal(number, handler or signal.SIG_DFL)

    def receive(number: int, frame: FrameType | None = None) -> None:
        nonlocal is_stopping
        if not is_stopping:
            is_stopping = True
            log.info("stopping on %s", signal.Signals(number).name)
            stop()
        elif interrupts:
            log.warning("interrupted by a second %s", signal.Signals(number).name)
            restore()
            if loop is None:
                raise KeyboardInterrupt
            if task is not None:
                task.cancel()

    for number in STOP_SIGNALS:
        if loop is None:
            signal.signal(number, receive)
        else:
            loop.add_signal_handler(number, receive, number)
    try:
        yield
    finally:
        restore()


@contextlib.contextmanager
def stop_event(event: threading.Event | None = None) -> Iterator[threading.Event]:
    """Return an event (`event` or a new one) that the first SIGTERM or SIGINT sets while the block runs."""
    stop = event or threading.Event()
    with stop_on_signal(stop.set):
        yield stop


async def wait_for_event(event: Event) -> None:
    """Wait until `event` is set. An event of threads cannot be awaited and is polled every 50 ms."""
    if isinstance(event, asyncio.Event):
        await event.wait()
        return
    while not event.is_set():  # noqa: ASYNC110
        await asyncio.sleep(EVENT_POLL_S)


async def sleep_until_set(seconds: float, event: Event | None) -> bool:
    """Sleep, but not beyond the moment when `event` is set; whether it is set."""
    if event is None:
        await asyncio.sleep(seconds)
        return False
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(wait_for_event(event), seconds)
    return event.is_set()


@contextlib.contextmanager
def stop_on_event(stop: Callable[[], object], event: threading.Event | None) -> Iterator[None]:
    """Call `stop` on the running event loop once another thread sets `event`, while the block runs."""
    if event is None:
        yield
        return
    waiting = asyncio.get_running_loop().create_task(wait_for_event(event))
    waiting.add_done_callback(lambda done: None if done.cancelled() else stop())
    try:
        yield
    finally:
        waiting.cancel()


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on an event loop of its own, with uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:  # pragma: no cover - no uvloop on Windows
        return asyncio.run(work)
    return uvloop.run(work)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
