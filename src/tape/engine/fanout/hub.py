"""The hub: delivers committed entries to the subscriptions of this process, strictly in order.

Entries of this process arrive from memory right after their commit. When another process has written in between,
or sends a notification, the hub reads the missing entries from the journal. `head` grows without gaps, so a
subscription sees each entry once and in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from tape.base.retry import WHILE_UNAVAILABLE, Backoff
from tape.base.telemetry.metrics import Metrics
from tape.cel import EntryView, Predicate
from tape.engine.fanout.ring import Ring
from tape.engine.fanout.subscription import JournalSubscription
from tape.engine.predicate_budget import STREAM, Evaluations, PredicateBudget
from tape.errors import CursorExpired, ServerStopping, StoreError, TapeError
from tape.journal.appender import read_head
from tape.journal.history import Archive, History
from tape.journal.reader import EVERYTHING, Cursor, Selection, SubjectCursor
from tape.model.entry import Entry
from tape.model.pattern import PatternSet
from tape.model.principal import current_principal
from tape.store import Database

log = logging.getLogger(__name__)

RING_ENTRIES = 16_384
RING_BYTES = 32 << 20


class Follower(Protocol):
    """Receives every entry after its commit, on the event loop."""

    def committed(self, entries: Sequence[Entry]) -> None:
        """New entries, in order, without a gap."""

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
    ) -> None:
        self.database = database
        self.history = History(database, archive)
        self.metrics = metrics or database.metrics
        self.predicate_budget = predicate_budget or PredicateBudget(self.metrics)
        self.ring = Ring(RING_ENTRIES, RING_BYTES)
        self.head = 0
        self._by_subject: PatternSet[JournalSubscription] = PatternSet()
        self._by_run: dict[str, dict[JournalSubscription, None]] = {}
        self._open: dict[JournalSubscription, None] = {}
        self._followers: list[Follower] = []
        self._cursor = SubjectCursor(EVERYTHING)
        self._stale = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._closing: TapeError | None = None

    async def start(self) -> None:
        """Follow the journal from its current head."""
        self.head = (await self.database.read(read_head)).global_seq
        self.metrics.head.set(self.head)
        self.database.on_commit(self._committed)
        supervise = self.metrics.background.supervise
        self._tasks = [
            asyncio.create_task(supervise("journal notifications", self._listen)),
            asyncio.create_task(supervise("journal catch-up", self._catch_up)),
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
        await self.history.close()

    async def subscribe(
        self,
        selection: Selection,
        after: int,
        cursor: Cursor | None = None,
        predicate: Predicate | None = None,
    ) -> JournalSubscription:
        """Subscribe to a selection after a global_seq: 0 is the oldest entry, -1 is the head.

        Entries that retention removed are read from the archive, if there is one. With a predicate, only entries
        for which it is true are delivered; predicate errors are counted as no match. Its CPU time is charged to the
        current principal's tenant.
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
        subscription = JournalSubscription(self, selection, after, cursor, predicate, account)
        self._open[subscription] = None
        self.metrics.subscriptions.set(len(self._open))
        return subscription

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
        self.head = new[-1].global_seq
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

    async def _read_on(self) -> bool:
        """Read entries after the head from the journal; False if there are none."""
        found = await self.database.read(lambda reader: self._cursor.read(reader, self.head))
        if found.entries and found.entries[0].global_seq > self.head + 1:
            self._restart_at(found.entries[0].global_seq - 1)
        before = self.head
        if self._pass_on(found.entries):
            self.metrics.foreign_entries.inc(self.head - before)
            return True
        return False

    def _restart_at(self, position: int) -> None:
        """Continue after entries that retention removed before delivery; subscriptions that need them get an error."""
        log.warning("retention removed entries %d to %d before they were delivered", self.head + 1, position)
        self.ring.clear()
        self.head = position
        for subscription in list(self._open):
            subscription.fall_behind()
        for follower in self._followers:
            follower.restarted(position)
        self._stale.set()
