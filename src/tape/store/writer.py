"""One writer per process, with group commit.

Operations that wait are run in one transaction and committed once, so that the cost of making
them durable is shared. Tenants take turns, and a batch has no more than is done in a set time.
A *single* operation gets a savepoint and fails alone; *bulk* operations of one kind were
validated before they were queued, need no savepoint, and run as one call. A *piggybacked*
operation waits for a transaction of others that it has something to add to, and runs last in it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tape.base.telemetry.metrics import Metrics
from tape.errors import BackendStuck, Overloaded, ServerStopping, StoreError, StoreUnavailable, TapeError
from tape.store.batch_size import BatchSize
from tape.store.connection import DatabaseConnection
from tape.store.fair_queue import BACKGROUND, FairQueue, Tenant
from tape.store.hooks import Hooks
from tape.store.transaction import Transaction
from tape.store.witness import Witness

log = logging.getLogger(__name__)

T = TypeVar("T")
Item = TypeVar("Item")
Single = Callable[[Transaction], T]
Bulk = Callable[[Transaction, Sequence[Item]], Sequence[T]]
# What was announced, and the channels that were notified.
Listener = Callable[[list[Any], set[str]], None]

# After a failed connection attempt, callers are answered at once for this long before the next one.
RECONNECT_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """How much is written at once, and how much may wait."""

    batch_operations: int = 1024
    batch_bytes: int = 4 << 20
    queue_operations: int = 20_000
    queue_bytes: int = 64 << 20
    # Seconds of work in one transaction, without what its commit takes, while one tenant writes and while several do.
    # Another tenant's operation waits for about two transactions.
    batch_s: float = 0.05
    shared_batch_s: float = 0.004

    @property
    def least_cost(self) -> int:
        """What an operation takes of a batch at least, in bytes."""
        return max(self.batch_bytes // self.batch_operations, 1)


@dataclass(slots=True)
class _Waiting(Generic[T]):
    """A queued operation and the future of its caller."""

    future: asyncio.Future[T]
    size: int
    cost: int
    single: Callable[[Transaction], T] | None = None
    bulk: Callable[[Transaction, Sequence[Any]], Sequence[T]] | None = None
    item: Any = None
    result: Any = None
    error: BaseException | None = None


class Piggyback(Generic[T]):
    """An operation that waits for a transaction of others; `result` is done when that is durable, or has failed."""

    __slots__ = ("joins", "waiting")

    def __init__(self, waiting: _Waiting[T], joins: Callable[[Transaction], bool]) -> None:
        self.waiting = waiting
        self.joins = joins

    @property
    def result(self) -> asyncio.Future[T]:
        """What the operation has returned."""
        return self.waiting.future


class Writer:
    """Runs operations on its own thread, those of a tenant in the order they were submitted."""

    def __init__(
        self,
        connect: Callable[[], DatabaseConnection],
        limits: WriterLimits,
        metrics: Metrics,
        listener: Listener,
        witness: Witness,
        hooks: Hooks | None = None,
    ) -> None:
        self._connect = connect
        self._hooks = hooks or Hooks()
        self._witness = witness
        self._limits = limits
        self._metrics = metrics
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._queue: FairQueue[_Waiting[Any]] = FairQueue(limits.queue_operations, limits.queue_bytes)
        least, most = limits.least_cost, limits.batch_bytes
        self._alone = BatchSize(limits.batch_s, first=most, least=least, most=most)
        self._shared = BatchSize(limits.shared_batch_s, first=64 * least, least=least, most=most)
        self._batch_size = self._alone
        self._wake = threading.Condition()
        self._piggyback: Piggyback[Any] | None = None
        self._closing = False
        self._connection: DatabaseConnection | None = None
        self._is_renewal_due = False
        self._down_until = 0.0
        self._down_because: StoreError | None = None
        self._thread = threading.Thread(target=self._work, name="tape-writer", daemon=True)
        self._thread.start()

    async def submit(self, operation: Single[T], size: int = 256, tenant: Tenant = BACKGROUND) -> T:
        """Run an operation that may fail alone; `size` is its rough weight in bytes."""
        cost = max(size, self._limits.least_cost)
        waiting: _Waiting[T] = _Waiting(self._loop.create_future(), size, cost, single=operation)
        self._enqueue(waiting, tenant)
        return await waiting.future

    async def submit_bulk(self, operation: Bulk[Item, T], item: Item, size: int, tenant: Tenant = BACKGROUND) -> T:
        """Run `operation(tx, items)` with this item among others; each caller gets its own result."""
        cost = max(size, self._limits.least_cost)
        waiting: _Waiting[T] = _Waiting(self._loop.create_future(), size, cost, bulk=operation, item=item)
        self._enqueue(waiting, tenant)
        return await waiting.future

    def piggyback(self, operation: Single[T], joins: Callable[[Transaction], bool]) -> Piggyback[T]:
        """Run an operation at the end of the next transaction that it joins; it commits and fails with that.

        It may raise as long as it writes within `tx.savepoint()`. One waits at a time.
        """
        assert self._piggyback is None, "another one waits"
        waiting: _Waiting[T] = _Waiting(self._loop.create_future(), 0, 0, single=operation)
        piggyback = self._piggyback = Piggyback(waiting, joins)
        return piggyback

    def withdraw(self, piggyback: Piggyback[Any]) -> bool:
        """Let an operation wait no longer; False if a transaction has taken it."""
        with self._wake:
            if self._piggyback is not piggyback:
                return False
            self._piggyback = None
            return True

    def renew(self) -> None:
        """Make a new connection before the next operation."""
        self._is_renewal_due = True

    @property
    def is_busy(self) -> bool:
        """Whether operations wait to be written."""
        return self._queue.operations > 0

    async def close(self) -> None:
        """Finish what is queued, then stop."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)
        # The thread's last results are settled by callbacks already scheduled on this loop.
        await asyncio.sleep(0)

    def _enqueue(self, waiting: _Waiting[Any], tenant: Tenant) -> None:
        with self._wake:
            if self._closing:
                raise ServerStopping("The writer is shutting down; the operation was not accepted.")
            removed = self._queue.put(waiting, tenant)
            if removed is None:
                raise self._overloaded()
            self._metrics.queued.set(self._queue.operations)
            self._wake.notify()
        for each in removed:
            if not each.future.done():
                each.future.set_exception(self._overloaded())

    def _overloaded(self) -> Overloaded:
        self._metrics.overloaded.inc()
        return Overloaded(
            f"{self._queue.operations} operations ({self._queue.bytes} bytes) wait to be written already; "
            f"the limits are {self._limits.queue_operations} and {self._limits.queue_bytes} bytes, and this tenant"
            " holds most of them. Nothing was written: try again in a moment."
        )

    # ── on the writer's thread ───────────────────────────────────────────────────────────────────

    def _work(self) -> None:
        while batch := self._take():
            outcome: tuple[list[Any], set[str]] = [], set()
            started = time.perf_counter()
            try:
                outcome = self._run(batch)
            except TapeError as error:
                self._fail(batch, error)
            except Exception as error:
                log.exception("a batch of %d operations failed", len(batch))
                self._fail(batch, error)
            else:
                self._metrics.commits.inc()
                self._metrics.commit_seconds.observe(time.perf_counter() - started)
                self._metrics.commit_operations.observe(len(batch))
            self._loop.call_soon_threadsafe(self._settle, batch, *outcome)
        if self._connection is not None:
            self._connection.close()

    def _take(self) -> list[_Waiting[Any]]:
        """What waits, within the limits of a batch; empty when it is time to stop."""
        limits = self._limits
        with self._wake:
            while not self._queue.operations and not self._closing:
                self._wake.wait()
            self._batch_size = self._shared if self._queue.is_shared else self._alone
            batch = self._queue.take(limits.batch_operations, self._batch_size.cost)
            self._metrics.queued.set(self._queue.operations)
            return batch

    def _run(self, batch: list[_Waiting[Any]]) -> tuple[list[Any], set[str]]:
        connection = self._connected()
        try:
            connection.begin()
            started = time.perf_counter()
            tx = Transaction(connection)
            if len(batch) == 1 and batch[0].single is not None:
                if not self._run_alone(connection, tx, batch[0]):
                    return [], set()
            else:
                self._run_together(tx, batch)
            operations, cost = len(batch), sum([waiting.cost for waiting in batch])
            started += self._run_piggyback(tx, batch)

            def flush() -> None:
                tx.flush()
                self._batch_size.observe(operations, cost, time.perf_counter() - started)

            connection.commit(flush)
        except BaseException as error:
            self._abandon(connection, broken=isinstance(error, StoreUnavailable | BackendStuck))
            raise
        if tx.tail is not None:
            self._witness.record(tx.tail)
        for hook in self._hooks.committed:
            hook(tx.announcements)
        return tx.announcements, tx.notices

    def _run_alone(self, connection: DatabaseConnection, tx: Transaction, waiting: _Waiting[Any]) -> bool:
        """Run an operation that has the transaction for itself: it needs no savepoint to fail alone."""
        assert waiting.single is not None
        try:
            waiting.result = waiting.single(tx)
        except Exception as error:
            if not tx.survives(error):
                raise
            connection.rollback()
            waiting.error = error
            return False
        return True

    def _run_together(self, tx: Transaction, batch: list[_Waiting[Any]]) -> None:
        position = 0
        while position < len(batch):
            waiting = batch[position]
            if waiting.bulk is None:
                self._run_single(tx, waiting)
                position += 1
            else:
                position = self._run_bulk(tx, batch, position)

    def _run_single(self, tx: Transaction, waiting: _Waiting[Any]) -> None:
        assert waiting.single is not None
        try:
            with tx.savepoint():
                waiting.result = waiting.single(tx)
        except Exception as error:
            if not tx.survives(error):
                raise
            waiting.error = error

    def _run_piggyback(self, tx: Transaction, batch: list[_Waiting[Any]]) -> float:
        """Run the operation that waits for this transaction and let it be settled with the batch; the seconds taken."""
        piggyback = self._piggyback
        if piggyback is None or not piggyback.joins(tx) or not self.withdraw(piggyback):
            return 0.0
        began = time.perf_counter()
        waiting = piggyback.waiting
        assert waiting.single is not None
        batch.insert(0, waiting)  # it is settled first
        try:
            waiting.result = waiting.single(tx)
        except Exception as error:
            if not tx.survives(error):
                raise
            waiting.error = error
        return time.perf_counter() - began

    def _run_bulk(self, tx: Transaction, batch: list[_Waiting[Any]], start: int) -> int:
        operation = batch[start].bulk
        assert operation is not None
        end = start
        while end < len(batch) and batch[end].bulk == operation:
            end += 1
        together = batch[start:end]
        results = operation(tx, [waiting.item for waiting in together])
        for waiting, result in zip(together, results, strict=True):
            waiting.result = result
        return end

    def _connected(self) -> DatabaseConnection:
        if self._connection is not None and (self._is_renewal_due or not self._connection.is_current):
            self._discard(self._connection)
        if self._connection is None:
            if time.monotonic() < self._down_until and self._down_because is not None:
                raise self._down_because
            self._is_renewal_due = False
            try:
                connection = self._begin_witness(self._connect())
                self._metrics.store_connects.inc()
                self._connection = connection
                self._run_hooks(connection)
            except BaseException as error:
                if self._connection is not None:  # nothing is written with a connection that was not compared
                    self._discard(self._connection)
                if isinstance(error, StoreError):
                    self._down_until = time.monotonic() + RECONNECT_PAUSE_S
                    self._down_because = error
                raise
        return self._connection

    def _begin_witness(self, connection: DatabaseConnection) -> DatabaseConnection:
        """The connection, unless the database lost entries that the witness knows."""
        try:
            self._witness.begin(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _run_hooks(self, connection: DatabaseConnection) -> None:
        """Let the layers above look at a new connection, and write, before anything else is written with it."""
        if not self._hooks.writer_connected:
            return
        connection.begin()
        tx = Transaction(connection)
        for hook in self._hooks.writer_connected:
            hook(tx)
        connection.commit(tx.flush)
        if tx.tail is not None:
            self._witness.record(tx.tail)
        for committed in self._hooks.committed:
            committed(tx.announcements)
        self._loop.call_soon_threadsafe(self._settle, [], tx.announcements, tx.notices)

    def _abandon(self, connection: DatabaseConnection, *, broken: bool) -> None:
        """Undo a failed batch; a connection that cannot even do that is replaced."""
        try:
            if not broken:
                connection.rollback()
                connection.memory.clear()  # it may be of entries that were not committed
                return
        except TapeError as error:
            log.warning("rollback failed, reconnecting: %s", error)
        self._discard(connection)

    def _discard(self, connection: DatabaseConnection) -> None:
        self._connection = None
        try:
            connection.close()
        except TapeError:
            log.debug("closing a broken connection failed", exc_info=True)

    def _fail(self, batch: list[_Waiting[Any]], error: BaseException) -> None:
        self._metrics.commit_failures.labels(type(error).__name__).inc()
        for waiting in batch:
            waiting.error = waiting.error or error

    # ── on the event loop ────────────────────────────────────────────────────────────────────────

    def _settle(self, batch: list[_Waiting[Any]], announcements: list[Any], notices: set[str]) -> None:
        if announcements or notices:
            self._listener(announcements, notices)
        for waiting in batch:
            if waiting.future.done():
                continue  # the caller went away; what it asked for is done all the same
            if waiting.error is not None:
                waiting.future.set_exception(waiting.error)
            else:
                waiting.future.set_result(waiting.result)
