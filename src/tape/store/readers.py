"""Reader connections: each on a thread of its own, so that reading never waits for writing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tape.errors import StoreUnavailable
from tape.store.connection import DatabaseConnection, Reader

T = TypeVar("T")


class Readers:
    """A few threads, each with its own connection, opened when first needed and again when lost."""

    def __init__(self, connect: Callable[[], DatabaseConnection], count: int) -> None:
        self._connect = connect
        self._local = threading.local()
        self._open: set[DatabaseConnection] = set()
        self._lock = threading.Lock()
        self._executor = ThreadPoolExecutor(count, thread_name_prefix="tape-reader")

    async def run(self, question: Callable[[Reader], T]) -> T:
        """Ask a question on one of the reader threads."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._ask, question)

    async def close(self) -> None:
        """Wait for running questions, then close every connection."""
        await asyncio.to_thread(self._executor.shutdown, wait=True, cancel_futures=True)
        for connection in self._open:
            connection.close()

    def _ask(self, question: Callable[[Reader], T]) -> T:
        connection: DatabaseConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._connect()
            with self._lock:
                self._open.add(connection)
        try:
            return question(connection)
        except StoreUnavailable:
            self._local.connection = None
            with self._lock:
                self._open.discard(connection)
            connection.close()
            raise
