"""The database underneath: one writer with group commit, readers beside it, and news of other writers."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextvars import copy_context
from typing import Any, TypeVar

from tape.base.structs import resolve_all
from tape.base.telemetry.metrics import Metrics
from tape.base.url_mask import mask_urls
from tape.errors import SchemaOutdated
from tape.model.principal import SYSTEM, current_principal
from tape.store.connection import DatabaseConnection, Dialect, Reader
from tape.store.fair_queue import BACKGROUND, Tenant
from tape.store.migrations import Migration, migrate, pending_migrations
from tape.store.readers import Readers
from tape.store.writer import Bulk, Item, Single, Writer, WriterLimits

S = TypeVar("S")
T = TypeVar("T")

# The notification channel for new entries.
JOURNAL = "tape_journal"


class Database(ABC):
    """A database and everything this process does with it. Use as an async context manager."""

    dialect: Dialect

    def __init__(
        self,
        url: str,
        *,
        limits: WriterLimits | None = None,
        metrics: Metrics | None = None,
        readers: int = 4,
        migrate: bool = True,
    ) -> None:
        self.url = url
        self.metrics = metrics or Metrics()
        self._limits = limits or WriterLimits()
        self._reader_count = readers
        self._migrates = migrate
        self._writer: Writer | None = None
        self._readers: Readers | None = None
        self._listeners: list[Callable[[list[Any]], None]] = []
        self._by_channel: dict[str, list[Callable[[], None]]] = {}

    # ── what a dialect provides ──────────────────────────────────────────────────────────────────

    @abstractmethod
    def connect(self, *, read_only: bool = False) -> DatabaseConnection:
        """A new connection; raises StoreUnavailable where there is no database to connect to."""

    @abstractmethod
    def changes(self, channel: str = JOURNAL) -> AsyncIterator[None]:
        """Yields whenever another process may have committed, or has notified the channel.

        Survives restarts of the database.
        """

    # ── life ─────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> None:
        """Bring the schema up to date and start the writer and the readers."""
        resolve_all()  # before there are threads
        await asyncio.to_thread(self._prepare)
        self._writer = Writer(self.connect, self._limits, self.metrics, self._announce)
        self._readers = Readers(lambda: self.connect(read_only=True), self._reader_count)

    async def close(self) -> None:
        """Finish what is queued, then let go of every connection."""
        if self._writer is not None:
            await self._writer.close()
        if self._readers is not None:
            await self._readers.close()

    async def __aenter__(self) -> Database:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _prepare(self) -> None:
        connection = self.connect()
        try:
            if self._migrates:
                migrate(connection)
            elif pending := pending_migrations(connection):
                raise SchemaOutdated(
                    f"The database {mask_urls(self.url)} lacks {', '.join(map(str, pending))}."
                    f" Run: tape migrate --store {mask_urls(self.url)}"
                )
        finally:
            connection.close()

    def migrate(self) -> list[Migration]:
        """Apply pending migrations and return them."""
        connection = self.connect()
        try:
            return migrate(connection)
        finally:
            connection.close()

    def pending(self) -> list[Migration]:
        """The migrations that this version needs and the database lacks."""
        connection = self.connect()
        try:
            return pending_migrations(connection)
        finally:
            connection.close()

    # ── work ─────────────────────────────────────────────────────────────────────────────────────

    async def write(self, operation: Single[T], size: int = 256) -> T:
        """Run `operation(tx)` durably. If it raises, it alone is undone."""
        return await self._started_writer.submit(_in_context(operation), size, _tenant_of_caller())

    @property
    def max_operation_bytes(self) -> int:
        """An operation larger than this can never be written: the queue would not take it."""
        return self._limits.queue_bytes

    async def write_bulk(self, operation: Bulk[Item, T], item: Item, size: int) -> T:
        """Run `operation(tx, items)` durably, with this item and whatever else waits for the same operation.

        For operations that cannot fail for one item alone: they share one call and need no savepoint.
        """
        return await self._started_writer.submit_bulk(operation, item, size, _tenant_of_caller())

    async def read(self, question: Callable[[Reader], T]) -> T:
        """Ask `question(reader)` on a reader connection."""
        assert self._readers is not None, "the database is not open"
        return await self._readers.run(_in_context(question))

    def on_commit(self, listener: Callable[[list[Any]], None]) -> None:
        """Call back on the event loop with what operations announced, in commit order."""
        self._listeners.append(listener)

    def on_notice(self, channel: str, listener: Callable[[], None]) -> None:
        """Call back on the event loop when an operation of this process has notified the channel, after its commit.

        Notices of other processes come by `changes`.
        """
        self._by_channel.setdefault(channel, []).append(listener)

    @property
    def _started_writer(self) -> Writer:
        assert self._writer is not None, "the database is not open"
        return self._writer

    def _announce(self, announcements: list[Any], notices: set[str]) -> None:
        if announcements:
            for listener in self._listeners:
                listener(announcements)
        for channel in notices:
            for look in self._by_channel.get(channel, ()):
                look()


def _in_context(function: Callable[[S], T]) -> Callable[[S], T]:
    """The function in the context of the caller, on whichever thread it runs: it can ask on whose behalf."""
    context = copy_context()
    return lambda source: context.run(function, source)


def _tenant_of_caller() -> Tenant:
    """Whose turn a write takes: the tenant of the caller's principal. On an open server that is the tenant it names."""
    principal = current_principal()
    return BACKGROUND if principal is SYSTEM else principal.tenant
