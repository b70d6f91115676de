"""Durable subscriptions: every matching entry after a cursor, in order, exactly once.

A subscription that keeps up gets entries from memory. One that falls behind never blocks the hub and loses nothing:
it reads from its position, first from the hub's ring, then from the journal, then from the archive, and is live
again when it has caught up. One whose predicate has used its CPU budget also leaves memory, and waits for the budget.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from tape.cel import Predicate
from tape.engine.predicate_budget import STREAM, PredicateAccount
from tape.errors import CursorExpired, StoreUnavailable, TapeError
from tape.journal.appender import Head
from tape.journal.epochs import Holes
from tape.journal.history import ArchiveCursor, EntryFilter
from tape.journal.reader import Cursor, Selection, Slice, open_cursor
from tape.model.entry import Entry
from tape.model.gap import JournalGap
from tape.store import Reader

if TYPE_CHECKING:
    from tape.engine.fanout.hub import Hub

MAX_PENDING = 4_096
MAX_PENDING_BYTES = 8 << 20
RING_STEP = 2_048
# A read that ends its connection so often may read a row that makes the database's process crash.
MAX_LOST_READS = 3


class Batch(msgspec.Struct, frozen=True):
    """The next entries, possibly none, the position to resume from, and the gaps up to there, in order.

    A subscription with an encoder has entries that it read in a thread as `encoded` instead of `entries`.
    """

    entries: list[Entry]
    position: int
    gaps: tuple[JournalGap, ...] = ()
    encoded: list[bytes] | None = None

    def split(self, max_entries: int) -> Iterator[Batch]:
        """Parts with `max_entries` at most. A gap is in the first part whose position is behind it."""
        entries, gaps = self.entries, self.gaps
        for start in range(0, max(len(entries), 1), max_entries):
            part = entries[start : start + max_entries]
            if start + max_entries >= len(entries):
                yield Batch(part, self.position, gaps)
                return
            position = part[-1].global_seq
            passed = tuple(gap for gap in gaps if gap.last <= position) if gaps else ()
            gaps = gaps[len(passed) :]
            yield Batch(part, position, passed)


# Encodes a batch on the thread that reads it, so that its entries stay in the cache of one processor.
Encoder = Callable[[Batch], list[bytes]]


class JournalSubscription:
    """One reader of the journal. Read batches with `next()`; call `close()` at the end.

    A gap ends it with EntryDamaged or CursorDiverged once everything before was read; with `skip_gaps` it goes on, and
    batches name the gaps.
    """

    def __init__(
        self,
        hub: Hub,
        selection: Selection,
        after: int,
        cursor: Cursor | None = None,
        predicate: Predicate | None = None,
        account: PredicateAccount | None = None,
        *,
        skip_gaps: bool = False,
        encoder: Encoder | None = None,
    ) -> None:
        self.selection = selection
        self.predicate = predicate
        self.account = account
        self.position = after
        self._skip_gaps = skip_gaps
        self._encode = encoder
        self._hub = hub
        self._cursor = cursor or open_cursor(selection)
        self._archive: ArchiveCursor | None = None
        self._pending: deque[Entry] = deque()
        self._pending_bytes = 0
        # The last entry that was considered when the subscription left the live path for lack of CPU budget.
        self._considered = 0
        # Entries that were read when the budget was used up.
        self._unevaluated: Slice | None = None
        self._live = False
        self._waiter: asyncio.Future[None] | None = None
        self._error: TapeError | None = None
        # Entries that the database lost since the last call of `next()`.
        self._lost: JournalGap | None = None
        self._counted_errors = 0
        self._is_woken = False
        self._lost_reads = 0  # in a row

    async def next(self, max_entries: int = MAX_PENDING, timeout: float | None = None) -> Batch:  # noqa: ASYNC109
        """The next entries as soon as there are any; an empty batch after `timeout` seconds without."""
        while True:
            self._count_errors()
            if self._error is not None:
                raise self._error
            if self._lost is not None:
                lost, self._lost = self._lost, None
                if self.position in range(lost.first, lost.last):
                    return self._pass_lost(lost)
            if self._is_woken:
                self._is_woken = False
                return Batch([], self.position)
            if self._pending:
                return self._take(max_entries)
            if not self._live:
                self.position = max(self.position, self._considered)
                if self.position >= self._hub.head and self._unevaluated is None:
                    self._live = True
                    self._hub.attach(self)
                    continue
                if self.account is not None and (delay := self._budget_wait(self.account)) > 0:
                    await self._wait_for_entries(delay)
                    continue
                found = await self._read_behind()
                batch = found if isinstance(found, Batch) else self._to_batch(found)
                self.position = batch.position
                if batch.entries or batch.gaps or batch.encoded:
                    return batch
            elif not await self._wait_for_entries(timeout):
                return self._take(0)

    def close(self) -> None:
        """End the subscription."""
        self._count_errors()
        self._hub.leave(self)

    def wake(self) -> None:
        """Let a waiting `next()` return an empty batch at once."""
        self._is_woken = True
        self._set_waiter()

    # ── called by the hub, on the event loop ─────────────────────────────────────────────────────

    def push(self, entry: Entry) -> None:
        """Deliver a matching entry right after its commit."""
        if entry.global_seq <= self.position or not self._live:
            return  # already read from the journal, which is ahead of the hub for a moment
        if len(self._pending) >= MAX_PENDING or self._pending_bytes > MAX_PENDING_BYTES:
            self.fall_behind()
            self._hub.metrics.fell_behind.inc()
        else:
            self._pending.append(entry)
            self._pending_bytes += len(entry.payload_json)
        self._set_waiter()

    def fall_behind(self) -> None:
        """Discard pending entries and read them again from the position."""
        self._considered = 0
        self._pending.clear()
        self._pending_bytes = 0
        self._live = False
        self._hub.detach(self)
        self._set_waiter()

    def lose(self, gap: JournalGap, *, is_behind: bool) -> None:
        """The database lost entries: end with CursorDiverged if some of them were read, else read on after them."""
        self._lost = gap
        if is_behind:
            self._unevaluated = None
            self.fall_behind()
        self._set_waiter()

    def leave_live(self, considered: int) -> None:
        """Keep pending entries, and read those after `considered` when the CPU budget permits."""
        if self._live:
            self._considered = considered
            self._live = False
            self._hub.detach(self)
            self._set_waiter()

    def fail(self, error: TapeError) -> None:
        """End the subscription with an error."""
        self._error = error
        self._set_waiter()

    # ── inside ───────────────────────────────────────────────────────────────────────────────────

    def _take(self, count: int) -> Batch:
        if len(self._pending) <= count:
            entries = list(self._pending)
            self._pending.clear()
            self._pending_bytes = 0
            # Entries up to the hub's head that are not pending did not match.
            self.position = max(self.position, self._hub.head) if self._live else self.position
        else:
            entries = [self._pending.popleft() for _ in range(count)]
            self._pending_bytes -= sum(len(entry.payload_json) for entry in entries)
            self.position = entries[-1].global_seq if entries else self.position
        return Batch(entries, self.position)

    def _to_batch(self, found: Slice) -> Batch:
        """What is delivered of a slice: all of it, or what is before the first gap, which then ends the stream."""
        if not found.gaps:
            return Batch(found.entries, found.position)
        self._hub.gaps.record(found.gaps)
        if self._skip_gaps:
            return Batch(found.entries, found.position, found.gaps)
        gap = next((gap for gap in found.gaps if not gap.is_passed_from(self.position)), None)
        if gap is None:
            return Batch(found.entries, found.position)
        self._error = gap.to_error(self.position)
        self._unevaluated = None
        before = [entry for entry in found.entries if entry.global_seq < gap.first]
        return Batch(before, max(gap.first - 1, self.position))

    def _pass_lost(self, lost: JournalGap) -> Batch:
        """End the stream with CursorDiverged, because it has delivered some of the lost entries, or name them."""
        self._hub.gaps.record([lost])
        if not self._skip_gaps:
            raise lost.to_error(self.position)
        self.position = lost.last
        return Batch([], self.position, (lost,))

    async def _read_behind(self) -> Slice | Batch:
        unevaluated, self._unevaluated = self._unevaluated, None
        if unevaluated is None and (recent := self._hub.ring.after(self.position, RING_STEP)):
            unevaluated = Slice(self.selection.filter(recent), recent[-1].global_seq, self._hub.head)
        if unevaluated is not None:
            if self.predicate is None:
                return unevaluated
            return await asyncio.to_thread(self._filter_by_predicate, unevaluated)
        return await self._hub.retry_read(self._read_stored, lambda: self._error is not None)

    async def _read_stored(self) -> Slice | Batch:
        try:
            if self._lost_reads < MAX_LOST_READS:
                found = await self._hub.database.read(self._read_journal)
            else:
                found = await self._hub.database.read_around_crashes(self._read_journal)
        except CursorExpired as expired:
            return await self._hub.history.read_expired(expired, self._read_archive)
        except StoreUnavailable:
            self._lost_reads += 1
            raise
        self._lost_reads = 0
        return found

    def _read_journal(self, reader: Reader) -> Slice | Batch:
        return self._encoded(self._filter_by_predicate(self._cursor.read(reader, self.position)))

    def _read_archive(self, head: Head, holes: Holes) -> Slice | Batch:
        if self._archive is None:
            self._archive = self._hub.history.open_archive_cursor(EntryFilter.of_selection(self.selection))
        return self._encoded(self._filter_by_predicate(self._archive.read(self.position, head, holes)))

    def _encoded(self, found: Slice) -> Slice | Batch:
        if self._encode is None or found.gaps or not found.entries:
            return found
        return Batch([], found.position, encoded=self._encode(Batch(found.entries, found.position)))

    def _filter_by_predicate(self, found: Slice) -> Slice:
        """Keep the entries for which the predicate is true; runs on the reader's thread.

        If that uses the CPU budget up, the entries after it are kept for later.
        """
        if self.predicate is None or self.account is None:
            return found
        evaluations = self._hub.predicate_budget.evaluations(STREAM)
        matching, done = evaluations.filter(self.account, self.predicate, found.entries)
        evaluations.close()
        if done == len(found.entries):
            return Slice(matching, found.position, found.head, found.gaps)
        until = found.entries[done].global_seq - 1
        later = tuple(gap for gap in found.gaps if gap.first > until)
        self._unevaluated = Slice(found.entries[done:], found.position, found.head, later)
        return Slice(matching, until, found.head, found.gaps[: len(found.gaps) - len(later)])

    @staticmethod
    def _budget_wait(account: PredicateAccount) -> float:
        account.check()
        return account.wait_s

    def _count_errors(self) -> None:
        if self.predicate is not None and self.predicate.errors > self._counted_errors:
            self._hub.metrics.predicate_errors.inc(self.predicate.errors - self._counted_errors)
            self._counted_errors = self.predicate.errors

    async def _wait_for_entries(self, timeout: float | None) -> bool:  # noqa: ASYNC109
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            if timeout is None:
                await self._waiter
            else:
                await asyncio.wait_for(self._waiter, timeout)
        except TimeoutError:
            return False
        finally:
            self._waiter = None
        return True

    def _set_waiter(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
