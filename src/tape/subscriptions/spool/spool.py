"""The spool: durable store-and-forward buffer for messages whose downstream is unavailable. `drain` replays it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from tape.errors import DamagedSpoolItem, SpoolFull, SpoolUnavailable
from tape.subscriptions import events
from tape.subscriptions.events import SubscriptionEvent, SubscriptionRef
from tape.subscriptions.spool.arrival_numbers import ArrivalNumbers
from tape.subscriptions.spool.backend import Area, SpoolBackend, StoredObject
from tape.subscriptions.spool.front import SpoolFront
from tape.subscriptions.spool.item import SpoolItem, decode, digest, sequence_of
from tape.subscriptions.spool.replay_rate import ReplayRate
from tape.subscriptions.spool.retention import evict_oldest, expire

Ordering = Literal["global", "per_key", "none"]
OnFull = Literal["stop_acking", "drop_to_dlq", "alert_only"]
Lane = tuple[str, ...]
EmitEvents = Callable[[Sequence[SubscriptionEvent]], Awaitable[None]]

PAGE = 25_000  # keys in memory


class SpoolRules(msgspec.Struct, kw_only=True, frozen=True):
    """Ordering, retention and replay of a spool: the `spool` block of a subscription."""

    ordering: Ordering = "per_key"
    max_bytes: int | None = 1 << 30
    max_age_hours: float | None = None
    on_full: OnFull = "stop_acking"
    rate_per_sec: float | None = None
    max_replay_attempts: int = 5

    def lane(self, downstream: str, ordering_key: str | None, key: str) -> Lane:
        """The lane of a message, within which order is kept: all messages, one ordering key, or the message alone."""
        match self.ordering:
            case "global":
                return ()
            case "per_key":
                return (downstream, ordering_key or "__global__")
            case "none":
                return (key,)


class Arrival(NamedTuple):
    """A message to append, with its plan."""

    message_id: str
    message: dict[str, Any]
    plan: dict[str, Any]
    downstream: str
    reason: str
    idempotency_key: str | None = None
    ordering_key: str | None = None


class _PendingAppend(NamedTuple):
    arrivals: Sequence[Arrival]
    answer: asyncio.Future[list[SpoolItem | SpoolFull]]


class Spool:
    """The spool of one subscription. `emit` writes an event once the change that it reports is durable."""

    def __init__(
        self,
        subscription: SubscriptionRef,
        source: str,
        backend: SpoolBackend,
        rules: SpoolRules,
        *,
        emit: EmitEvents,
        now_ms: Callable[[], int],
    ) -> None:
        self.subscription = subscription
        self.source = source
        self.backend = backend
        self.rules = rules
        self.emit = emit
        self.items = 0
        self.size_bytes = 0
        self.oldest_ms: int | None = None  # when the first message was spooled, if known
        self.front = SpoolFront(backend)
        self.evicted: set[str] = set()  # dead-lettered since the current drain began, which can hold them
        self.unemitted: set[str] = set()  # written, but their event is not emitted yet: not replayed before that
        self.draining = asyncio.Lock()
        self.replay_rate = ReplayRate(rules.rate_per_sec)  # shared by all drains, so that short ones keep the rate too
        self._appends: list[_PendingAppend] = []
        self._writing: asyncio.Task[None] | None = None
        self.high_water = 0  # the highest recv_seq found on open
        self._numbers = ArrivalNumbers(backend)
        self._now_ms = now_ms
        self._replaying: set[str] = set()
        self._evicting: set[str] = set()
        # Messages per lane. Lanes of an earlier process are unknown until its messages are replayed.
        self._waiting: Counter[Lane] = Counter()
        self._knows_lanes = True

    async def open(self) -> int:
        """Count the messages that an earlier process left. Returns their number."""
        dead_lettered = [await self.backend.measure(area) for area in (Area.DEAD, Area.QUARANTINE)]
        for _ in range(3):
            items = self.items
            live = await self.backend.measure(Area.LIVE)
            if items == self.items:
                break  # no concurrent write or removal
        self.high_water = max(sequence_of(each.last) or 0 for each in (live, *dead_lettered))
        self._numbers.last = max(self._numbers.last, self.high_water)
        self.items, self.size_bytes = live.items, live.size
        self._knows_lanes = not live.items
        self.front.reset()
        await self.refresh_oldest()
        return live.items

    async def emit_last_batch(self) -> None:
        """Emit the events of the last append again: the process can have died before it emitted them."""
        last = await self._read_item((await self.backend.measure(Area.LIVE)).last)
        if last is None or not last.first_seq:
            return
        together = await self.backend.page(Area.LIVE, f"{last.first_seq:020}", PAGE)
        found = [item for stored in together if (item := await self._read_item(stored.key)) is not None]
        await self.emit([events.spooled(self.subscription, **_where(item), **_what(item)) for item in found])

    async def _read_item(self, key: str) -> SpoolItem | None:
        """An item; None if it is removed or damaged. The drain quarantines damaged items."""
        data = await self.backend.get(Area.LIVE, key) if key else None
        with contextlib.suppress(DamagedSpoolItem):
            return decode(key, data) if data else None
        return None

    def has_waiting(self, downstream: str, ordering_key: str | None) -> bool:
        """Whether a spooled message of the same lane must be dispatched first."""
        if not self.items or self.rules.ordering == "none":
            return False
        return not self._knows_lanes or self._waiting[self.rules.lane(downstream, ordering_key, "")] > 0

    async def refresh_oldest(self) -> None:
        """Set `oldest_ms` from the first intact message."""
        self.oldest_ms = None
        while self.items and (stored := await self.front.peek()) is not None:
            data = await self.backend.get(Area.LIVE, stored.key)
            with contextlib.suppress(DamagedSpoolItem):
                if data is not None:
                    self.oldest_ms = decode(stored.key, data).spooled_at_ms
                    return
            self.front.step(stored)

    async def append(self, arrivals: Sequence[Arrival]) -> list[SpoolItem | SpoolFull]:
        """Append messages. Each result is the durable item, or SpoolFull if it was not accepted.

        Concurrent calls share one write.
        """
        pending = _PendingAppend(arrivals, asyncio.get_running_loop().create_future())
        self._appends.append(pending)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_appends(), name="tape-spool")
        return await pending.answer

    async def _write_appends(self) -> None:
        """Write until no append is pending. Runs as a task, so that a cancelled caller does not affect the others."""
        try:
            while self._appends:
                appends, self._appends = self._appends, []
                try:
                    answers = await self._write([arrival for pending in appends for arrival in pending.arrivals])
                except Exception as error:
                    for pending in appends:
                        _answer(pending, error)
                    continue
                for pending in appends:
                    _answer(pending, answers[: len(pending.arrivals)])
                    del answers[: len(pending.arrivals)]
        finally:
            self._writing = None

    async def _write(self, arrivals: Sequence[Arrival]) -> list[SpoolItem | SpoolFull]:
        answers: list[SpoolItem | SpoolFull] = []
        accepted: list[tuple[SpoolItem, bytes]] = []
        incoming = 0
        is_over = False
        await self._numbers.reserve(len(arrivals))
        first = self._numbers.last + 1
        for arrival in arrivals:
            item = self._item(arrival, first)
            data = item.encode()
            is_over = is_over or self._excess(incoming + len(data)) > 0
            if is_over and self.rules.on_full == "stop_acking":
                # Later messages are rejected too, even smaller ones: they would overtake this one.
                self._numbers.last -= 1
                answers.append(SpoolFull(self._full(len(data))))
                continue
            incoming += len(data)
            accepted.append((item, data))
            answers.append(item)
        if is_over and self.rules.on_full == "drop_to_dlq":
            await evict_oldest(self, self._excess(incoming))
        if accepted:
            keys = [item.key for item, _ in accepted]
            self.unemitted.update(keys)
            try:
                await self._put(accepted)
                self.oldest_ms = self.oldest_ms if self.items else accepted[0][0].spooled_at_ms
                self.items += len(accepted)
                self.size_bytes += incoming
                self._note_lanes(item for item, _ in accepted)
                to_emit = [events.spooled(self.subscription, **_where(item), **_what(item)) for item, _ in accepted]
                if is_over and self.rules.on_full == "alert_only":
                    to_emit.append(events.spool_alert(self.subscription, accepted[-1][0].downstream, self.size_bytes))
                await self.emit(to_emit)
            finally:
                self.unemitted.difference_update(keys)
        return answers

    async def _put(self, accepted: Sequence[tuple[SpoolItem, bytes]]) -> None:
        try:
            await self.backend.put(Area.LIVE, [(item.key, data) for item, data in accepted])
        except SpoolUnavailable:
            # Some can be written. They are not acknowledged and will be redelivered, so remove them if possible.
            with contextlib.suppress(SpoolUnavailable):
                await self.backend.delete(Area.LIVE, [item.key for item, _ in accepted])
            raise

    async def expire(self) -> int:
        """Dead-letter messages older than `max_age_hours`. Returns their number."""
        if self.rules.max_age_hours is None:
            return 0
        return await expire(self, self._now_ms() - int(self.rules.max_age_hours * 3_600_000))

    async def load(self, stored: StoredObject) -> SpoolItem | None:
        """Read an item; None if it is removed. A damaged item is quarantined and raises DamagedSpoolItem."""
        return await self.decode_or_quarantine(stored, await self.backend.get(Area.LIVE, stored.key))

    async def decode_or_quarantine(self, stored: StoredObject, data: bytes | None) -> SpoolItem | None:
        """Decode an item; None if it is removed. A damaged item is quarantined and raises DamagedSpoolItem."""
        if data is None:
            return None
        try:
            return decode(stored.key, data)
        except DamagedSpoolItem as error:
            await self.backend.put(Area.QUARANTINE, [(stored.key, data)])
            sequence, _, name = stored.key.partition("-")
            ref = f"noetl://spool/{self.subscription.path}/{int(sequence) if sequence.isdigit() else 0}/{name}"
            # The event is emitted before the removal: after a crash in between it is emitted twice, never lost.
            await self.emit([events.quarantined(self.subscription, ref, str(error))])
            await self.backend.delete(Area.LIVE, [stored.key])
            self._subtract(1, stored.size)
            self._knows_lanes = not self.items
            raise

    async def load_intact(self, stored: StoredObject) -> SpoolItem | None:
        """Read an item; None if it is removed or was quarantined as damaged."""
        with contextlib.suppress(DamagedSpoolItem):
            return await self.load(stored)
        return None

    async def dead_letter(self, dead_lettered: Sequence[tuple[SpoolItem, int]], reason: str) -> None:
        """Move items to the dead letters, where they stay until they are requeued or purged."""
        if not dead_lettered:
            return
        keys = [item.key for item, _ in dead_lettered]
        for item, _ in dead_lettered:
            item.reason = reason
        await self.backend.put(Area.DEAD, [(item.key, item.encode()) for item, _ in dead_lettered])
        dead_letters = [
            events.dead_lettered(self.subscription, **_where(item), attempts=item.attempts, reason=reason)
            for item, _ in dead_lettered
        ]
        await self.emit(dead_letters)
        await self.remove(dead_lettered)
        if self.draining.locked():
            self.evicted.update(keys)

    @contextlib.contextmanager
    def evicting(self) -> Iterator[Callable[[str], bool]]:
        """Yields a function that reserves a key for eviction: False if it is being replayed or evicted already."""
        keys: set[str] = set()

        def may_evict(key: str) -> bool:
            if key in self._replaying or key in self._evicting:
                return False
            self._evicting.add(key)
            keys.add(key)
            return True

        try:
            yield may_evict
        finally:
            self._evicting -= keys

    def is_evicted(self, key: str) -> bool:
        """Whether a message that a drain holds was evicted, or is being evicted."""
        return key in self._evicting or key in self.evicted

    async def rewrite(self, item: SpoolItem, size: int) -> None:
        """Store an item again, with its new number of attempts."""
        data = item.encode()
        await self.backend.put(Area.LIVE, [(item.key, data)])
        self.size_bytes += len(data) - size

    async def remove(self, gone: Sequence[tuple[SpoolItem, int]]) -> None:
        """Remove messages; each is given with the size of its object."""
        await self.backend.delete(Area.LIVE, [item.key for item, _ in gone])
        for item, _ in gone:
            if (lane := self._lane(item)) in self._waiting:
                self._waiting[lane] -= 1
                if self._waiting[lane] <= 0:
                    del self._waiting[lane]
        self._subtract(len(gone), sum(size for _, size in gone))

    async def requeue(self, keys: Sequence[str]) -> int:
        """Move dead letters back to their position, with 0 attempts. Returns their number."""
        back = 0
        for key in keys:
            data = await self.backend.get(Area.DEAD, key)
            if data is None:
                continue
            item = decode(key, data)
            item.attempts, item.reason = 0, "requeued"
            again = item.encode()
            await self.backend.put(Area.LIVE, [(key, again)])
            await self.backend.delete(Area.DEAD, [key])
            self.items += 1
            self.size_bytes += len(again)
            self._note_lanes([item])
            self.front.reset()
            await self.emit([events.spooled(self.subscription, **_where(item), **_what(item))])
            back += 1
        return back

    async def drop(self, keys: Sequence[str]) -> int:
        """Remove live messages permanently and emit an event for each. Returns their number."""
        gone = 0
        for key in keys:
            data = await self.backend.get(Area.LIVE, key)
            if data is None:
                continue
            with contextlib.suppress(DamagedSpoolItem):
                item = await self.decode_or_quarantine(StoredObject(key, len(data)), data)
                if item is not None:
                    event = events.dead_lettered(
                        self.subscription, **_where(item), attempts=item.attempts, reason="purged"
                    )
                    await self.emit([event])
                    await self.remove([(item, len(data))])
                    gone += 1
        return gone

    @contextlib.contextmanager
    def replaying(self, keys: Sequence[str]) -> Iterator[None]:
        """Protect messages from eviction while they are being replayed."""
        self._replaying.update(keys)
        try:
            yield
        finally:
            self._replaying.difference_update(keys)

    async def walk(self, area: Area, first: int = PAGE) -> AsyncIterator[StoredObject]:
        """All objects of an area in key order. The first page has `first` of them."""
        after, limit = "", first
        while page := await self.backend.page(area, after, limit):
            for stored in page:
                yield stored
            after, limit = page[-1].key, PAGE

    def _lane(self, item: SpoolItem) -> Lane:
        return self.rules.lane(item.downstream, item.ordering_key, item.key)

    def _note_lanes(self, items: Iterable[SpoolItem]) -> None:
        # Without ordering each message is a lane of its own, which is never looked up.
        if self.rules.ordering != "none":
            self._waiting.update(map(self._lane, items))

    def _subtract(self, count: int, size: int) -> None:
        self.items = max(0, self.items - count)
        self.size_bytes = max(0, self.size_bytes - size)
        if not self.items:
            self.oldest_ms = None
            self._waiting.clear()
            self._knows_lanes = True

    def _item(self, arrival: Arrival, first: int) -> SpoolItem:
        self._numbers.last += 1
        return SpoolItem(
            subscription=self.subscription.path,
            source=self.source,
            message_id=arrival.message_id,
            idempotency_key=arrival.idempotency_key,
            dedup_key=arrival.idempotency_key or arrival.message_id,
            recv_seq=self._numbers.last,
            first_seq=first,
            ordering_key=arrival.ordering_key,
            downstream=arrival.downstream,
            sha256=digest(arrival.message.get("data")),
            attempts=0,
            spooled_at_ms=self._now_ms(),
            reason=arrival.reason,
            message=arrival.message,
            plan=arrival.plan,
        )

    def _excess(self, incoming: int) -> int:
        """Bytes above `max_bytes` if `incoming` bytes were appended."""
        return 0 if self.rules.max_bytes is None else self.size_bytes + incoming - self.rules.max_bytes

    def _full(self, incoming: int) -> str:
        return (
            f"The spool of {self.subscription.path} holds {self.size_bytes:,} of {self.rules.max_bytes:,} bytes;"
            f" a message of {incoming:,} does not fit. Raise spool.retention.max_bytes, or bring the downstream back."
        )


def _answer(pending: _PendingAppend, answer: list[SpoolItem | SpoolFull] | Exception) -> None:
    if pending.answer.done():
        return  # the caller was cancelled
    if isinstance(answer, Exception):
        pending.answer.set_exception(answer)
    else:
        pending.answer.set_result(answer)


def _where(item: SpoolItem) -> dict[str, Any]:
    return {"message_id": item.message_id, "recv_seq": item.recv_seq, "spool_ref": item.ref}


def _what(item: SpoolItem) -> dict[str, Any]:
    return {"sha256": item.sha256, "downstream": item.downstream, "reason": item.reason}
