"""Reader connections: each on a thread of its own, so that reading never waits for writing."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tape.errors import BackendStuck, StoreUnavailable, TapeError
from tape.store.connection import DatabaseConnection, Reader
from tape.store.hooks import Hooks

T = TypeVar("T")


class Readers:
    """A few threads, each with its own connection, opened when first needed and again when lost."""

    def __init__(self, connect: Callable[[], DatabaseConnection], count: int, hooks: Hooks | None = None) -> None:
        self._connect = connect
        self._hooks = hooks or Hooks()
        self._generation = 0
        self._local = threading.local()
        self._open: set[DatabaseConnection] = set()
        self._lock = threading.Lock()
        self._executor = ThreadPoolExecutor(count, thread_name_prefix="tape-reader")

    async def run(self, question: Callable[[Reader], T]) -> T:
        """Ask a question on one of the reader threads."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._ask, question)

    def renew(self) -> None:
        """Make new connections before the next questions."""
        self._generation += 1

    async def close(self) -> None:
        """Wait for running questions, then close every connection."""
        await asyncio.to_thread(self._executor.shutdown, wait=True, cancel_futures=True)
        for connection in self._open:
            connection.close()

    def _ask(self, question: Callable[[Reader], T]) -> T:
        connection = self._connected()
        try:
            return question(connection)
        except (StoreUnavailable, BackendStuck):
            self._discard(connection)
            raise

    def _connected(self) -> DatabaseConnection:
        connection: DatabaseConnection | None = getattr(self._local, "connection", None)
        if connection is not None:
            if self._local.generation == self._generation and connection.is_current:
                return connection
            self._discard(connection)
        self._local.generation = self._generation
        connection = self._local.connection = self._connect()
        with self._lock:
            self._open.add(connection)
        try:
            for hook in self._hooks.reader_connected:
                hook(connection)
        except TapeError:
            self._discard(connection)
            raise
        return connection

    def _discard(self, connection: DatabaseConnection) -> None:
        self._local.connection = None
        with self._lock:
            self._open.discard(connection)
        with contextlib.suppress(TapeError):
            connection.close()
