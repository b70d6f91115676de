"""The hub: delivers committed entries to the subscriptions of this process, strictly in order.

Entries of this process arrive from memory right after their commit. When another process has written in between,
or sends a notification, the hub reads the missing entries from the journal. `head` grows without gaps, so a
subscription sees each entry once and in order. At a gap of the journal every subscription reads on its own: it meets
the gap, or its selection excludes it.
When the database lost entries, the hub goes on with the next epoch, and subscriptions that have read beyond the cut
get CursorDiverged.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from tape.base.retry import WHILE_UNAVAILABLE, Backoff, is_retryable, retry_async
from tape.base.telemetry.metrics import Metrics
from tape.cel import EntryView, Predicate
from tape.engine.fanout.gap_recorder import GapRecorder
from tape.engine.fanout.ring import Ring
from tape.engine.fanout.subscription import Encoder, JournalSubscription
from tape.engine.predicate_budget import STREAM, Evaluations, PredicateBudget
from tape.errors import CursorExpired, ServerStopping, StoreError, StoreUnavailable, TapeError
from tape.journal.continuity import Continuity, Divergence
from tape.journal.epochs import DEFAULT_MARGIN
from tape.journal.history import Archive, History
from tape.journal.reader import EVERYTHING, Cursor, Selection, Slice, SubjectCursor
from tape.model.entry import Entry
from tape.model.gap import JournalGap
from tape.model.pattern import PatternSet
from tape.model.principal import current_principal
from tape.store import Database, Reader

log = logging.getLogger(__name__)

T = TypeVar("T")

RING_ENTRIES = 16_384
RING_BYTES = 32 << 20
# All readers fail together: one line in the log per second.
RETRY_LOG_S = 1.0


class Follower(Protocol):
    """Receives every entry after its commit, on the event loop."""

    def committed(self, entries: Sequence[Entry]) -> None:
        """New entries, in order, without a gap."""

    def skipped(self, gap: JournalGap) -> None:
        """Entries that there is nothing to deliver of; those after the gap follow."""

    def restarted(self, position: int) -> None:
        """Entries up to a position were pruned before they could be delivered."""

    def closed(self) -> None:
        """No further entry follows."""


class Hub:
    """One per process. Call `start()` after the database is open."""

    def __init__(
        self,
        database: Database,
        metrics: Metrics | None = None,
        archive: Archive | None = None,
        predicate_budget: PredicateBudget | None = None,
        epoch_margin: int = DEFAULT_MARGIN,
    ) -> None:
        self.database = database
        self.history = History(database, archive)
        self.metrics = metrics or database.metrics
        self.predicate_budget = predicate_budget or PredicateBudget(self.metrics)
        self.gaps = GapRecorder(database, self.metrics)
        self.ring = Ring(RING_ENTRIES, RING_BYTES)
        self.continuity = Continuity(database, self.metrics, epoch_margin)
        self.head = 0
        # The chain value of the entry at `head`, if it is known.
        self._chain: bytes | None = None
        self._by_subject: PatternSet[JournalSubscription] = PatternSet()
        self._by_run: dict[str, dict[JournalSubscription, None]] = {}
        self._open: dict[JournalSubscription, None] = {}
        self._followers: list[Follower] = []
        self._cursor = SubjectCursor(EVERYTHING)
        self._stale = asyncio.Event()
        # Whether a connection saw less than this process knows: the writer compares, with a new connection.
        self._is_suspect = False
        self._tasks: list[asyncio.Task[None]] = []
        self._closing: TapeError | None = None
        self._retry_logged_at = -RETRY_LOG_S

    async def start(self) -> None:
        """Follow the journal from its current head."""
        self.continuity.on_divergence = self._diverge
        self.continuity.on_suspicion = self._suspect
        head = await self.continuity.begin()
        self.head, self._chain = head.global_seq, head.chain
        self.metrics.head.set(self.head)
        await self.gaps.refresh()
        self.database.on_commit(self._committed)
        supervise = self.metrics.background.supervise
        self._tasks = [
            asyncio.create_task(supervise("journal notifications", self._listen)),
            asyncio.create_task(supervise("journal catch-up", self._catch_up)),
            asyncio.create_task(supervise("damage recorder", self.gaps.run)),
        ]

    @property
    def is_closing(self) -> bool:
        """Whether the hub is shutting down."""
        return self._closing is not None

    async def close(self) -> None:
        """End every subscription with ServerStopping and stop following."""
        self._closing = ServerStopping("The server is shutting down; resume from the last global_seq you have seen.")
        for subscription in list(self._open):
            subscription.fail(self._closing)
        for follower in self._followers:
            follower.closed()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.continuity.end()
        await self.history.close()

    async def subscribe(
        self,
        selection: Selection,
        after: int,
        cursor: Cursor | None = None,
        predicate: Predicate | None = None,
        *,
        skip_gaps: bool = False,
        encoder: Encoder | None = None,
    ) -> JournalSubscription:
        """Subscribe to a selection after a global_seq: 0 is the oldest entry, -1 is the head.

        Entries that retention removed are read from the archive, if there is one. With a predicate, only entries
        for which it is true are delivered; predicate errors are counted as no match. Its CPU time is charged to the
        current principal's tenant. With `skip_gaps` a gap does not end the subscription.
        """
        if self._closing is not None:
            raise self._closing
        if after < 0:
            after = self.head
        else:
            after = await self.history.resolve_start(after, selection)
        account = None
        if predicate is not None:
            what = f"stream {selection.pattern.text or selection.run_id!r} with predicate {predicate.text[:200]!r}"
            account = self.predicate_budget.open(STREAM, current_principal().tenant, what)
        subscription = JournalSubscription(
            self, selection, after, cursor, predicate, account, skip_gaps=skip_gaps, encoder=encoder
        )
        self._open[subscription] = None
        self.metrics.subscriptions.set(len(self._open))
        return subscription

    async def retry_read(self, read: Callable[[], Awaitable[T]], is_ended: Callable[[], bool]) -> T:
        """Return what `read` returns. While the store is unavailable or busy, repeat it until the reader has ended."""
        return await retry_async(
            read,
            WHILE_UNAVAILABLE,
            can_retry=lambda error: is_retryable(error) and not is_ended() and self._closing is None,
            on_retry=self._report_retry,
        )

    def _report_retry(self, error: Exception, attempt: int, delay: float) -> None:
        self.metrics.read_retries.inc()
        if (now := time.monotonic()) >= self._retry_logged_at + RETRY_LOG_S:
            self._retry_logged_at = now
            log.warning("reading the journal failed, retrying in %.2f s: %s", delay, error)

    def add_follower(self, follower: Follower) -> None:
        """Deliver every entry to a follower."""
        self._followers.append(follower)

    # ── subscriptions come and go ────────────────────────────────────────────────────────────────

    def attach(self, subscription: JournalSubscription) -> None:
        """Start to push matching entries to a subscription."""
        selection = subscription.selection
        if selection.run_id:
            self._by_run.setdefault(selection.run_id, {})[subscription] = None
        else:
            self._by_subject.add(selection.pattern, subscription)

    def detach(self, subscription: JournalSubscription) -> None:
        """Stop to push: the subscription reads from the journal until it has caught up."""
        selection = subscription.selection
        if not selection.run_id:
            self._by_subject.discard(selection.pattern, subscription)
        elif (followers := self._by_run.get(selection.run_id)) is not None:
            followers.pop(subscription, None)
            if not followers:
                del self._by_run[selection.run_id]

    def leave(self, subscription: JournalSubscription) -> None:
        """Remove a subscription."""
        self.detach(subscription)
        self._open.pop(subscription, None)
        self.metrics.subscriptions.set(len(self._open))

    # ── entries come in ──────────────────────────────────────────────────────────────────────────

    def _committed(self, entries: list[Entry]) -> None:
        """Deliver entries of this process, in commit order. A gap means that another process wrote in between."""
        self.metrics.entries.inc(len(entries))
        self._pass_on(entries)

    def _pass_on(self, entries: Sequence[Entry]) -> bool:
        new = entries[max(self.head + 1 - entries[0].global_seq, 0) :] if entries else ()
        if not new:
            return False
        if new[0].global_seq != self.head + 1:
            self._stale.set()
            return False
        self.ring.extend(new)
        self.metrics.delivered.inc(self._deliver(new))
        self.head, self._chain = new[-1].global_seq, new[-1].chain
        for follower in self._followers:
            follower.committed(new)
        self.metrics.head.set(self.head)
        return True

    def _deliver(self, new: Sequence[Entry]) -> int:
        """Push new entries to the live subscriptions that they match; returns how many were pushed."""
        matching, by_run = self._by_subject.matching, self._by_run
        delivered = 0
        evaluations: Evaluations | None = None
        for entry in new if self._open else ():
            # The lookup is completed before anything is pushed: a full subscription leaves the set.
            candidates = [s for s in matching(entry.subject) if s.selection.matches_beyond_pattern(entry)]
            if by_run and (followers := by_run.get(entry.run_id)) is not None:
                candidates += [s for s in followers if s.selection.matches(entry)]
            view: EntryView | None = None  # one for all predicates: the payload is parsed once
            for subscription in candidates:
                if subscription.account is not None and subscription.predicate is not None:
                    if subscription.account.wait_s > 0:
                        subscription.leave_live(entry.global_seq - 1)
                        continue
                    view = view or EntryView(entry)
                    evaluations = evaluations or self.predicate_budget.evaluations(STREAM)
                    is_match = evaluations.matches_inline(subscription.account, subscription.predicate, view)
                    if is_match is None:
                        subscription.leave_live(entry.global_seq - 1)
                    if not is_match:
                        continue
                subscription.push(entry)
                delivered += 1
        if evaluations is not None:
            evaluations.close()
        return delivered

    async def _listen(self) -> None:
        async for _ in self.database.changes():
            self._stale.set()

    async def _catch_up(self) -> None:
        backoff = Backoff(WHILE_UNAVAILABLE)
        while True:
            await self._stale.wait()
            self._stale.clear()
            try:
                if self._is_suspect:
                    await self._compare()
                while await self._read_on():
                    pass
                backoff.reset()
            except CursorExpired as error:
                self._restart_at(error.oldest - 1)
            except StoreError as error:
                log.warning("reading the journal for subscriptions failed, retrying: %s", error)
                self.metrics.read_retries.inc()
                await backoff.wait_async()
                self._stale.set()

    def _suspect(self) -> None:
        self._is_suspect = True
        self._stale.set()

    async def _compare(self) -> None:
        """Let the writer compare what is known with the database. If it closes a cut, the hub goes on after it."""
        self._is_suspect = True  # until it is done
        await self.database.renew()
        self._is_suspect = False

    async def _read_on(self) -> bool:
        """Read entries after the head from the journal; False if there are none."""
        epoch = self.continuity.epoch
        found = await self._read_after(self.head)
        if self.continuity.epoch != epoch:  # what was read may be of a state that is gone
            return True
        before, start = self.head, 0
        self.continuity.observe(found.entries)
        for gap in found.gaps:
            end = bisect_left(found.entries, gap.first, start, key=lambda entry: entry.global_seq)
            self._pass_on(found.entries[start:end])
            self._skip(gap)
            start = end
        self._pass_on(found.entries[start:])
        self.metrics.foreign_entries.inc(self.head - before)
        return self.head > before

    def _skip(self, gap: JournalGap) -> None:
        """Continue after a gap. Live subscriptions leave memory: each meets the gap when it reads the journal."""
        if gap.last <= self.head:
            return
        self.gaps.record([gap])
        self.ring.clear()
        self.head, self._chain = gap.last, None
        for subscription in list(self._open):
            subscription.fall_behind()
        for follower in self._followers:
            follower.skipped(gap)
        self.metrics.head.set(self.head)

    async def _read_after(self, position: int) -> Slice:
        """Read entries after a position, if the database still has what was read up to there."""
        chain = self._chain

        def read(reader: Reader) -> Slice | None:
            if not self.continuity.is_continued(reader, position, chain):
                return None
            return self._cursor.read(reader, position)

        found = await self.database.read(read)
        if found is None:
            await self._compare()
            if self.head != position:
                return Slice([], self.head, self.head)
            found = await self.database.read(read)
        if found is None:
            raise StoreUnavailable("A connection sees an older state of the journal than the writer's.")
        return found

    def _diverge(self, divergence: Divergence) -> None:
        """Go on after entries that the database lost; subscriptions that have read some of them get an error."""
        self.database.announce_rollback()
        lost = JournalGap(divergence.common + 1, divergence.resumes_at - 1, "diverged", "the database lost them")
        is_ahead = self.head > divergence.common
        if is_ahead:
            self.ring.clear()
            self.head, self._chain = divergence.resumes_at - 1, None
            self.metrics.head.set(self.head)
        for subscription in list(self._open):
            subscription.lose(lost, is_behind=is_ahead)
        for follower in self._followers if is_ahead else ():
            follower.skipped(lost)
        self._stale.set()

    def _restart_at(self, position: int) -> None:
        """Continue after entries that retention removed before delivery; subscriptions that need them get an error."""
        log.warning("retention removed entries %d to %d before they were delivered", self.head + 1, position)
        self.ring.clear()
        self.head, self._chain = position, None
        for subscription in list(self._open):
            subscription.fall_behind()
        for follower in self._followers:
            follower.restarted(position)
        self._stale.set()
