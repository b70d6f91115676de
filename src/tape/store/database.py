"""The database underneath: one writer with group commit, readers beside it, and news of other writers."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextvars import copy_context
from pathlib import Path
from typing import Any, TypeVar

from tape.base.config import load_witness
from tape.base.store_url import describe_source
from tape.base.structs import resolve_all
from tape.base.telemetry.metrics import Metrics
from tape.base.url_mask import mask_urls
from tape.errors import SchemaOutdated, StoreNotFound, TailLost
from tape.model.principal import SYSTEM, current_principal
from tape.store.connection import DatabaseConnection, Dialect, Reader
from tape.store.damage_log import DamageLog
from tape.store.fair_queue import BACKGROUND, Tenant
from tape.store.hooks import Hooks
from tape.store.migrations import Migration, check_restored, known_migrations, migrate, pending_migrations
from tape.store.process_lock import Holder, ProcessLock
from tape.store.readers import Readers
from tape.store.reconnection import ReconnectingReader
from tape.store.records import Record
from tape.store.transaction import Transaction
from tape.store.witness import Witness, open_backends
from tape.store.writer import Bulk, Item, Piggyback, Single, Writer, WriterLimits

S = TypeVar("S")
T = TypeVar("T")

# How long PostgreSQL is waited for after one of its processes crashed: it restarts all of them.
CRASH_RECOVERY_S = 30.0
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
        create: bool = True,
        witness: str | None = None,
        accept_loss: bool = False,
    ) -> None:
        self.url = url
        self.metrics = metrics or Metrics()
        self.damage = DamageLog(self.metrics)
        self._limits = limits or WriterLimits()
        self._reader_count = readers
        self._migrates = migrate
        self._creates = create
        # What knows the last acknowledged entry besides the database.
        self.witness = Witness(
            open_backends(load_witness() if witness is None else witness, self._default_witness),
            mask_urls(url),
            self.metrics,
            accepts_loss=accept_loss,
        )
        self._crash_search = asyncio.Lock()
        self._writer: Writer | None = None
        self._readers: Readers | None = None
        self.hooks = Hooks()
        self._listeners: list[Callable[[list[Any]], None]] = []
        self._by_channel: dict[str, list[Callable[[], None]]] = {}
        self._rollback_listeners: list[Callable[[], None]] = []

    # ── what a dialect provides ──────────────────────────────────────────────────────────────────

    @abstractmethod
    def connect(self, *, read_only: bool = False) -> DatabaseConnection:
        """A new connection; raises StoreUnavailable where there is no database to connect to."""

    @property
    @abstractmethod
    def _default_witness(self) -> Path | None:
        """Where the witness file is unless the setting `witness` names a path; None for a store without one."""

    @abstractmethod
    def changes(self, channel: str = JOURNAL) -> AsyncIterator[None]:
        """Yields whenever another process may have committed, or has notified the channel.

        Survives restarts of the database.
        """

    @abstractmethod
    async def maintain(self) -> None:
        """Do what the database needs beside reads and writes, until cancelled; returns at once if that is nothing."""

    def lock(self, holder: Holder, *, exclusive: bool) -> ProcessLock | None:
        """The lock that says that this process has the store open; None where any number of processes may have it."""
        return None

    @property
    def exists(self) -> bool:
        """Whether there is a database; one that a server manages is there, or cannot be connected to."""
        return True

    # ── life ─────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> None:
        """Bring the schema up to date and start the writer and the readers."""
        resolve_all(Record)  # before there are threads
        await asyncio.to_thread(self._prepare)
        self._writer = Writer(self.connect, self._limits, self.metrics, self._announce, self.witness, self.hooks)
        self._readers = Readers(self._connect_reader, self._reader_count, self.hooks)

    async def close(self) -> None:
        """Finish what is queued, then let go of every connection."""
        if self._writer is not None:
            await self._writer.close()
        if self._readers is not None:
            await self._readers.close()
        await asyncio.to_thread(self.witness.close)

    async def __aenter__(self) -> Database:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _connect_reader(self) -> DatabaseConnection:
        connection = self.connect(read_only=True)
        connection.damage = self.damage
        return connection

    def _prepare(self) -> None:
        connection = self.connect()
        try:
            check_restored(connection)
            if not self._creates and not connection.has_table("tape_migrations"):
                raise self.without_tables()
            if self._migrates:
                self.witness.begin(connection)
                if _migrate(connection):
                    self.witness.begin(connection)
            elif pending := pending_migrations(connection):
                raise SchemaOutdated(
                    f"The database {mask_urls(self.url)} lacks {', '.join(map(str, pending))}."
                    f" Run: tape migrate --store {mask_urls(self.url)}"
                )
        except TailLost:
            connection.keep_log()
            raise
        finally:
            connection.close()

    def without_tables(self) -> StoreNotFound:
        """The error about a database that is not Tape's."""
        return StoreNotFound(
            f"The database {mask_urls(self.url)}{describe_source(self.url)} has no tables of Tape: it is empty,"
            f" or it belongs to another program. To make the tables: tape migrate --store {mask_urls(self.url)}"
        )

    def migrate(self) -> list[Migration]:
        """Apply pending migrations and return them."""
        connection = self.connect()
        try:
            return _migrate(connection)
        finally:
            connection.close()

    def pending(self) -> list[Migration]:
        """The migrations that this version needs and the database lacks; all, where there is none."""
        if not self._creates and not self.exists:
            return known_migrations(self.dialect)
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
    def is_busy(self) -> bool:
        """Whether operations wait to be written."""
        return self._started_writer.is_busy

    @property
    def max_operation_bytes(self) -> int:
        """An operation larger than this can never be written: the queue would not take it."""
        return self._limits.queue_bytes

    async def write_bulk(self, operation: Bulk[Item, T], item: Item, size: int) -> T:
        """Run `operation(tx, items)` durably, with this item and whatever else waits for the same operation.

        For operations that cannot fail for one item alone: they share one call and need no savepoint.
        """
        return await self._started_writer.submit_bulk(operation, item, size, _tenant_of_caller())

    def piggyback(self, operation: Single[T], joins: Callable[[Transaction], bool]) -> Piggyback[T]:
        """Run `operation(tx)` at the end of the next transaction of others for which `joins(tx)` is true."""
        return self._started_writer.piggyback(_in_context(operation), joins)

    def withdraw(self, piggyback: Piggyback[Any]) -> bool:
        """Let a piggybacked operation wait no longer; False if a transaction has taken it."""
        return self._started_writer.withdraw(piggyback)

    async def read(self, question: Callable[[Reader], T]) -> T:
        """Ask `question(reader)` on a reader connection."""
        assert self._readers is not None, "the database is not open"
        return await self._readers.run(_in_context(question))

    async def renew(self) -> None:
        """Replace the connections of the writer and the readers, and wait until the hooks accept the writer's."""
        self.renew_readers()
        self._started_writer.renew()
        await self._started_writer.submit(lambda tx: None)

    def renew_readers(self) -> None:
        """Replace the connections of the readers before their next questions."""
        assert self._readers is not None, "the database is not open"
        self._readers.renew()

    async def read_around_crashes(self, question: Callable[[Reader], T]) -> T:
        """Ask a question on a connection of its own that is opened again when it is lost.

        What ends the connection twice while the database can be reached is StoreDamaged, so that a reader can leave it
        out. If the database cannot be reached, StoreUnavailable.
        """

        def connect() -> DatabaseConnection:
            connection = self.connect(read_only=True)
            connection.damage = self.damage
            return connection

        def ask(ask_question: Callable[[Reader], T]) -> T:
            with ReconnectingReader(connect, CRASH_RECOVERY_S) as reader:
                return ask_question(reader)

        # A crash ends the connections of all: what another reader causes must not count for this one, and what one has
        # found the others need not find again.
        async with self._crash_search:
            return await asyncio.to_thread(ask, _in_context(question))

    def on_commit(self, listener: Callable[[list[Any]], None]) -> None:
        """Call back on the event loop with what operations announced, in commit order."""
        self._listeners.append(listener)

    def on_rollback(self, listener: Callable[[], None]) -> None:
        """Call back on the event loop when the database is found to be in an older state than it was.

        Version numbers of its tables can then stand for other content: what is cached by them is read again.
        """
        self._rollback_listeners.append(listener)

    def announce_rollback(self) -> None:
        """Call the listeners of `on_rollback`, and replace the connections of the readers."""
        self.renew_readers()
        for listener in self._rollback_listeners:
            listener()

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


def _migrate(connection: DatabaseConnection) -> list[Migration]:
    applied = migrate(connection)
    if applied:
        connection.checkpoint()  # a lost log must not take the id of the journal with it
    return applied


def _in_context(function: Callable[[S], T]) -> Callable[[S], T]:
    """The function in the context of the caller, on whichever thread it runs: it can ask on whose behalf."""
    context = copy_context()
    return lambda source: context.run(function, source)


def _tenant_of_caller() -> Tenant:
    """Whose turn a write takes: the tenant of the caller's principal. On an open server that is the tenant it names."""
    principal = current_principal()
    return BACKGROUND if principal is SYSTEM else principal.tenant
