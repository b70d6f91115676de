"""Store and forward: messages wait here while their downstream is away. `draining.py` lets them go again."""

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
from tape.subscriptions.spool.pace import ReplayRate
from tape.subscriptions.spool.retention import evict_oldest, expire

Ordering = Literal["global", "per_key", "none"]
OnFull = Literal["stop_acking", "drop_to_dlq", "alert_only"]
Lane = tuple[str, ...]
EmitEvents = Callable[[Sequence[SubscriptionEvent]], Awaitable[None]]

PAGE = 25_000  # keys held at once


class SpoolRules(msgspec.Struct, kw_only=True, frozen=True):
    """How a spool orders, keeps and replays: the `spool` block of a subscription."""

    ordering: Ordering = "per_key"
    max_bytes: int | None = 1 << 30
    max_age_hours: float | None = None
    on_full: OnFull = "stop_acking"
    rate_per_sec: float | None = None
    max_replay_attempts: int = 5

    def lane(self, downstream: str, ordering_key: str | None, key: str) -> Lane:
        """What must not be overtaken: everything, what has the same key, or nothing else."""
        match self.ordering:
            case "global":
                return ()
            case "per_key":
                return (downstream, ordering_key or "__global__")
            case "none":
                return (key,)


class Arrival(NamedTuple):
    """A message that has to wait, as its source gave it and as the directives resolved it."""

    message_id: str
    message: dict[str, Any]
    plan: dict[str, Any]
    downstream: str
    reason: str
    idempotency_key: str | None = None
    ordering_key: str | None = None


class _Turn(NamedTuple):
    arrivals: Sequence[Arrival]
    answer: asyncio.Future[list[SpoolItem | SpoolFull]]


class Spool:
    """One subscription's spool. `tell` writes to the journal; it is awaited after the change is durable."""

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
        self.oldest_ms: int | None = None  # since when the front waits, as far as it was looked at
        self.front = SpoolFront(backend)
        self.evicted: set[str] = set()  # given up since a pass began, which may hold them still
        self.unemitted: set[str] = set()  # written, and not yet on the journal: to be replayed after that
        self.draining = asyncio.Lock()
        self.pace = ReplayRate(rules.rate_per_sec)  # of all passes together: short ones must not add up to more
        self._turns: list[_Turn] = []
        self._writing: asyncio.Task[None] | None = None
        self.high_water = 0  # the newest number that an earlier process left here
        self._numbers = ArrivalNumbers(backend)
        self._now_ms = now_ms
        self._replaying: set[str] = set()
        self._evicting: set[str] = set()
        # Which lanes have somebody waiting; what an earlier process left is known only once it has gone.
        self._waiting: Counter[Lane] = Counter()
        self._knows_lanes = True

    async def open(self) -> int:
        """Count what an earlier process left. The number of messages that wait."""
        dead_lettered = [await self.backend.measure(area) for area in (Area.DEAD, Area.QUARANTINE)]
        for _ in range(3):
            items = self.items
            live = await self.backend.measure(Area.LIVE)
            if items == self.items:
                break  # nobody wrote or removed meanwhile
        self.high_water = max(sequence_of(each.last) or 0 for each in (live, *dead_lettered))
        self._numbers.last = max(self._numbers.last, self.high_water)
        self.items, self.size_bytes = live.items, live.size
        self._knows_lanes = not live.items
        self.front.reset()
        await self.refresh_oldest()
        return live.items

    async def emit_last_batch(self) -> None:
        """Tell what an earlier process wrote last: it may have died before it could."""
        last = await self._seen((await self.backend.measure(Area.LIVE)).last)
        if last is None or not last.first_seq:
            return
        together = await self.backend.page(Area.LIVE, f"{last.first_seq:020}", PAGE)
        found = [item for stored in together if (item := await self._seen(stored.key)) is not None]
        await self.emit([events.spooled(self.subscription, **_where(item), **_what(item)) for item in found])

    async def _seen(self, key: str) -> SpoolItem | None:
        """An item as it is; None if it is gone, or damaged, which is told when its turn comes."""
        data = await self.backend.get(Area.LIVE, key) if key else None
        with contextlib.suppress(DamagedSpoolItem):
            return decode(key, data) if data else None
        return None

    def has_waiting(self, downstream: str, ordering_key: str | None) -> bool:
        """Whether a message that is dispatched now would overtake one that waits and must not be overtaken."""
        if not self.items or self.rules.ordering == "none":
            return False
        return not self._knows_lanes or self._waiting[self.rules.lane(downstream, ordering_key, "")] > 0

    async def refresh_oldest(self) -> None:
        """Find out since when the message at the front waits."""
        self.oldest_ms = None
        while self.items and (stored := await self.front.peek()) is not None:
            data = await self.backend.get(Area.LIVE, stored.key)
            with contextlib.suppress(DamagedSpoolItem):
                if data is not None:
                    self.oldest_ms = decode(stored.key, data).spooled_at_ms
                    return
            self.front.step(stored)

    async def append(self, arrivals: Sequence[Arrival]) -> list[SpoolItem | SpoolFull]:
        """Keep messages; each is durable on return, or SpoolFull in its place says that it was not taken.

        Those that come while others are being written are written together.
        """
        turn = _Turn(arrivals, asyncio.get_running_loop().create_future())
        self._turns.append(turn)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_turns(), name="tape-spool")
        return await turn.answer

    async def _write_turns(self) -> None:
        """Write until nobody has brought more. It is a task of its own, so that nobody's leaving stops the others."""
        try:
            while self._turns:
                turns, self._turns = self._turns, []
                try:
                    answers = await self._write([arrival for turn in turns for arrival in turn.arrivals])
                except Exception as error:
                    for turn in turns:
                        _answer(turn, error)
                    continue
                for turn in turns:
                    _answer(turn, answers[: len(turn.arrivals)])
                    del answers[: len(turn.arrivals)]
        finally:
            self._writing = None

    async def _write(self, arrivals: Sequence[Arrival]) -> list[SpoolItem | SpoolFull]:
        answers: list[SpoolItem | SpoolFull] = []
        taken: list[tuple[SpoolItem, bytes]] = []
        incoming = 0
        is_over = False
        await self._numbers.reserve(len(arrivals))
        first = self._numbers.last + 1
        for arrival in arrivals:
            item = self._item(arrival, first)
            data = item.encode()
            is_over = is_over or self._excess(incoming + len(data)) > 0
            if is_over and self.rules.on_full == "stop_acking":
                # Nor is what comes behind it taken, be it smaller: it would have overtaken this one.
                self._numbers.last -= 1
                answers.append(SpoolFull(self._full(len(data))))
                continue
            incoming += len(data)
            taken.append((item, data))
            answers.append(item)
        if is_over and self.rules.on_full == "drop_to_dlq":
            await evict_oldest(self, self._excess(incoming))
        if taken:
            keys = [item.key for item, _ in taken]
            self.unemitted.update(keys)
            try:
                await self._put(taken)
                self.oldest_ms = self.oldest_ms if self.items else taken[0][0].spooled_at_ms
                self.items += len(taken)
                self.size_bytes += incoming
                self._note_lanes(item for item, _ in taken)
                to_emit = [events.spooled(self.subscription, **_where(item), **_what(item)) for item, _ in taken]
                if is_over and self.rules.on_full == "alert_only":
                    to_emit.append(events.spool_alert(self.subscription, taken[-1][0].downstream, self.size_bytes))
                await self.emit(to_emit)
            finally:
                self.unemitted.difference_update(keys)
        return answers

    async def _put(self, taken: Sequence[tuple[SpoolItem, bytes]]) -> None:
        try:
            await self.backend.put(Area.LIVE, [(item.key, data) for item, data in taken])
        except SpoolUnavailable:
            # Some may be there. They were not taken, and come again: as far as that is possible, they come once.
            with contextlib.suppress(SpoolUnavailable):
                await self.backend.delete(Area.LIVE, [item.key for item, _ in taken])
            raise

    async def expire(self) -> int:
        """Give up what is older than `max_age_hours`. The number of messages that were."""
        if self.rules.max_age_hours is None:
            return 0
        return await expire(self, self._now_ms() - int(self.rules.max_age_hours * 3_600_000))

    async def load(self, stored: StoredObject) -> SpoolItem | None:
        """An item by its listing; None if it is gone. A damaged one goes to quarantine, is told, and raised."""
        return await self.decode_or_quarantine(stored, await self.backend.get(Area.LIVE, stored.key))

    async def decode_or_quarantine(self, stored: StoredObject, data: bytes | None) -> SpoolItem | None:
        """The item of an object; None if it is gone. A damaged one goes to quarantine, is told, and raised."""
        if data is None:
            return None
        try:
            return decode(stored.key, data)
        except DamagedSpoolItem as error:
            await self.backend.put(Area.QUARANTINE, [(stored.key, data)])
            sequence, _, name = stored.key.partition("-")
            ref = f"noetl://spool/{self.subscription.path}/{int(sequence) if sequence.isdigit() else 0}/{name}"
            # Told before it is removed, as everything that leaves: after a crash in between it is told again.
            await self.emit([events.quarantined(self.subscription, ref, str(error))])
            await self.backend.delete(Area.LIVE, [stored.key])
            self._forget(1, stored.size)
            self._knows_lanes = not self.items
            raise

    async def load_intact(self, stored: StoredObject) -> SpoolItem | None:
        """An item by its listing; None if it is gone, or damaged and told."""
        with contextlib.suppress(DamagedSpoolItem):
            return await self.load(stored)
        return None

    async def dead_letter(self, dead_lettered: Sequence[tuple[SpoolItem, int]], reason: str) -> None:
        """Move items to the dead letters, where they stay until somebody requeues or purges them."""
        if not dead_lettered:
            return
        keys = [item.key for item, _ in dead_lettered]
        for item, _ in dead_lettered:
            item.reason = reason
        await self.backend.put(Area.DEAD, [(item.key, item.encode()) for item, _ in dead_lettered])
        letters = [
            events.dead_lettered(self.subscription, **_where(item), attempts=item.attempts, reason=reason)
            for item, _ in dead_lettered
        ]
        await self.emit(letters)
        await self.remove(dead_lettered)
        if self.draining.locked():
            self.evicted.update(keys)

    @contextlib.contextmanager
    def evicting(self) -> Iterator[Callable[[str], bool]]:
        """Asked for a key, says whether it may be given up: it is not on its way out, and nobody else gives it up."""
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
        """Whether a message that a drain holds has been given up meanwhile, or is about to be."""
        return key in self._evicting or key in self.evicted

    async def rewrite(self, item: SpoolItem, size: int) -> None:
        """Keep an item with its new number of attempts, in its place."""
        data = item.encode()
        await self.backend.put(Area.LIVE, [(item.key, data)])
        self.size_bytes += len(data) - size

    async def remove(self, gone: Sequence[tuple[SpoolItem, int]]) -> None:
        """Forget messages that need not wait any more; each with the size of its object."""
        await self.backend.delete(Area.LIVE, [item.key for item, _ in gone])
        for item, _ in gone:
            if (lane := self._lane(item)) in self._waiting:
                self._waiting[lane] -= 1
                if self._waiting[lane] <= 0:
                    del self._waiting[lane]
        self._forget(len(gone), sum(size for _, size in gone))

    async def requeue(self, keys: Sequence[str]) -> int:
        """Bring dead letters back to where they stood, with no attempts. The number that came back."""
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
        """Remove messages that wait, for good, and tell so. The number that were there."""
        gone = 0
        for key in keys:
            data = await self.backend.get(Area.LIVE, key)
            if data is None:
                continue
            with contextlib.suppress(DamagedSpoolItem):
                item = await self.decode_or_quarantine(StoredObject(key, len(data)), data)
                if item is not None:
                    letter = events.dead_lettered(
                        self.subscription, **_where(item), attempts=item.attempts, reason="purged"
                    )
                    await self.emit([letter])
                    await self.remove([(item, len(data))])
                    gone += 1
        return gone

    @contextlib.contextmanager
    def replaying(self, keys: Sequence[str]) -> Iterator[None]:
        """While messages are on their way out they are not evicted."""
        self._replaying.update(keys)
        try:
            yield
        finally:
            self._replaying.difference_update(keys)

    async def walk(self, area: Area, first: int = PAGE) -> AsyncIterator[StoredObject]:
        """All objects of an area, in the order of their keys. `first` of them are listed before the others are."""
        after, limit = "", first
        while page := await self.backend.page(area, after, limit):
            for stored in page:
                yield stored
            after, limit = page[-1].key, PAGE

    def _lane(self, item: SpoolItem) -> Lane:
        return self.rules.lane(item.downstream, item.ordering_key, item.key)

    def _note_lanes(self, items: Iterable[SpoolItem]) -> None:
        # Without an order a lane is a message: nobody asks for it, and there is one for each.
        if self.rules.ordering != "none":
            self._waiting.update(map(self._lane, items))

    def _forget(self, count: int, size: int) -> None:
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
        """By how many bytes the spool would be too large."""
        return 0 if self.rules.max_bytes is None else self.size_bytes + incoming - self.rules.max_bytes

    def _full(self, incoming: int) -> str:
        return (
            f"The spool of {self.subscription.path} holds {self.size_bytes:,} of {self.rules.max_bytes:,} bytes;"
            f" a message of {incoming:,} does not fit. Raise spool.retention.max_bytes, or bring the downstream back."
        )


def _answer(turn: _Turn, answer: list[SpoolItem | SpoolFull] | Exception) -> None:
    if turn.answer.done():
        return  # whoever brought it has gone
    if isinstance(answer, Exception):
        turn.answer.set_exception(answer)
    else:
        turn.answer.set_result(answer)


def _where(item: SpoolItem) -> dict[str, Any]:
    return {"message_id": item.message_id, "recv_seq": item.recv_seq, "spool_ref": item.ref}


def _what(item: SpoolItem) -> dict[str, Any]:
    return {"sha256": item.sha256, "downstream": item.downstream, "reason": item.reason}
