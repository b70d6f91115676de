"""An engine on a thread of its own: what a server is, without listeners. Clients of one process share it."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextvars import Context
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from tape import __version__
from tape.base.config import load_embedded_settings
from tape.base.owner import new_owner
from tape.client.failures import forked_client
from tape.engine.ledgers.dead_leases import expire_dead_leases
from tape.errors import ClientClosed, MissingExtra
from tape.proto import tape_pb2 as pb
from tape.server.core import ServerCore
from tape.store.process_lock import Holder, ProcessLock

if find_spec("apsw") is None:
    raise MissingExtra("A store without a server (sqlite:…)", "embedded")

log = logging.getLogger(__name__)

T = TypeVar("T")

PROGRAM = "a process without a server"

_engines: dict[str, EmbeddedEngine] = {}
# While it is held an engine starts or stops.
_lock = threading.Lock()


class EmbeddedEngine:
    """Serves calls of this process on a store; `methods` are the RPCs. Made by `acquire`, ended by `release`.

    Reactions are matched, timers fire and the write-ahead log is kept small, as in a server. Subscriptions to brokers,
    the ingress, the scrubber and the counter of aggregates are parts of a server only.
    """

    def __init__(self, url: str, key: str) -> None:
        self.url = url
        self.pid = os.getpid()
        self.users = 0
        self._key = key
        self._core = ServerCore(load_embedded_settings(url), new_owner())
        self.methods = self._core.bind_methods(lambda: pb.ServerInfo(version=__version__))
        self._process_lock: ProcessLock | None = None
        self._thread = threading.Thread(target=self._run, name="tape-embedded", daemon=True)
        self._is_stopped = False

    def start(self) -> None:
        """Lock and open the store. StoreHeld if another process has it."""
        self._process_lock = lock = self._core.database.lock(Holder(PROGRAM), exclusive=True)
        if lock is not None:
            lock.acquire()
        self.loop = asyncio.new_event_loop()
        self._thread.start()
        try:
            self.submit(self._open()).result()
        except BaseException:
            self._end()
            raise

    def stop(self) -> None:
        """Finish commits, close the store and let other processes have it."""
        self._is_stopped = True
        try:
            self.submit(self._close(), even_if_stopped=True).result()
        finally:
            self._end()

    def submit(self, work: Coroutine[Any, Any, T], *, even_if_stopped: bool = False) -> Future[T]:
        """Run a coroutine on the thread of the engine, in no context of the caller."""
        if os.getpid() != self.pid:
            work.close()
            raise forked_client(self.url, self.pid)
        if self._is_stopped and not even_if_stopped:
            work.close()
            raise ClientClosed(f"The client of {self.url} was closed. Make a new one.")
        result: Future[T] = Future()
        self.loop.call_soon_threadsafe(_begin, self.loop, work, result, context=Context())
        return result

    def forget(self) -> None:
        """Close the lock file in a forked process, so that the lock ends with the process that has the store."""
        if self._process_lock is not None:
            self._process_lock.release()

    async def _open(self) -> None:
        await self._core.database.open()
        try:
            if dead := await self._core.database.write(expire_dead_leases):
                log.info("%s: leases of processes that have ended were expired: %s", self.url, ", ".join(dead))
            await self._core.start()
        except BaseException:
            await self._close()
            raise
        self._core.start_tasks()

    async def _close(self) -> None:
        self._core.end_append_streams()
        await self._core.end_streams()
        await self._core.stop_tasks()
        await self._core.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def _end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
        if self._process_lock is not None:
            self._process_lock.release()


def acquire(url: str) -> EmbeddedEngine:
    """The engine of this process for a store, started by its first user."""
    key = _key_of(url)
    with _lock:
        engine = _engines.get(key)
        if engine is None:
            engine = EmbeddedEngine(url, key)
            engine.start()
            _engines[key] = engine
        engine.users += 1
        return engine


def release(engine: EmbeddedEngine) -> None:
    """Let go of an engine; the last user stops it."""
    if engine.pid != os.getpid():
        return
    with _lock:
        engine.users -= 1
        if not engine.users:
            del _engines[engine._key]
            engine.stop()


def _key_of(url: str) -> str:
    path = url.partition(":")[2].removeprefix("//")
    return path if path == ":memory:" else str(Path(path).expanduser().resolve())


def _begin(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], result: Future[T]) -> None:
    task = loop.create_task(work)

    def cancel(done: Future[T]) -> None:
        if done.cancelled():
            loop.call_soon_threadsafe(task.cancel)

    def settle(done: asyncio.Task[T]) -> None:
        if result.cancelled() or not result.set_running_or_notify_cancel():
            if not done.cancelled():
                done.exception()  # its caller has gone
        elif done.cancelled():
            result.set_exception(asyncio.CancelledError())
        elif (error := done.exception()) is not None:
            result.set_exception(error)
        else:
            result.set_result(done.result())

    task.add_done_callback(settle)
    result.add_done_callback(cancel)


def _forget_all() -> None:
    """In a forked process: its parent has the engines."""
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it
    for engine in _engines.values():
        engine.forget()
    _engines.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
