"""Store and forward: messages wait here while their downstream is away, and leave in the order they came."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple

import msgspec

from tape.errors import DamagedSpoolItem, SpoolFull
from tape.subscriptions.spool.backend import Area, SpoolBackend, Stored
from tape.subscriptions.spool.item import SpoolItem, decode, digest, sequence_of
from tape.subscriptions.spool.pace import Pace

Ordering = Literal["global", "per_key", "none"]
OnFull = Literal["stop_acking", "drop_to_dlq", "alert_only"]
Lane = tuple[str, ...]
Lanes = OrderedDict[Lane, deque[tuple[SpoolItem, int]]]
Tell = Callable[[str, dict[str, Any]], Awaitable[None]]

_PAGE = 10_000  # keys held at once while draining
_PAGE_BYTES = 32 << 20  # and bytes of messages
_ROUND = 500  # messages handed to one replay
_READS = 64


class Rules(msgspec.Struct, kw_only=True, frozen=True):
    """How a spool orders, keeps and replays: the `spool` block of a subscription."""

    ordering: Ordering = "per_key"
    max_bytes: int | None = 1 << 30
    max_age_hours: float | None = None
    on_full: OnFull = "stop_acking"
    rate_per_sec: float | None = None
    max_replay_attempts: int = 5


class Arrival(NamedTuple):
    """A message that has to wait, as its source gave it and as the directives resolved it."""

    message_id: str
    message: dict[str, Any]
    plan: dict[str, Any]
    downstream: str
    reason: str
    idempotency_key: str | None = None
    ordering_key: str | None = None


class Replayed(NamedTuple):
    """What became of one replay. `refused` is the item's own fault and counts as an attempt; `away` is not."""

    outcome: Literal["started", "duplicate", "refused", "away"]
    execution_id: str = ""
    error: str = ""


Replay = Callable[[list[SpoolItem]], Awaitable[list[Replayed]]]


class Report(msgspec.Struct, kw_only=True):
    """What one pass over the spool did."""

    replayed: int = 0
    deduped: int = 0
    dead_lettered: list[str] = msgspec.field(default_factory=list)
    quarantined: list[str] = msgspec.field(default_factory=list)
    remaining: int = 0

    @property
    def fully_drained(self) -> bool:
        """Whether nothing waits any more."""
        return self.remaining == 0


class Spool:
    """One subscription's spool. `tell` writes to the journal; it is awaited after the change is durable."""

    def __init__(
        self,
        subscription: str,
        source: str,
        backend: SpoolBackend,
        rules: Rules,
        *,
        tell: Tell,
        now_ms: Callable[[], int],
    ) -> None:
        self.subscription = subscription
        self.source = source
        self.backend = backend
        self.rules = rules
        self.items = 0
        self.size_bytes = 0
        self._sequence = 0
        self._tell = tell
        self._now_ms = now_ms
        self._changing = asyncio.Lock()
        self._draining = asyncio.Lock()
        self._replaying: set[str] = set()
        self._evicted: set[str] = set()

    async def open(self) -> int:
        """Count what an earlier process left. The number of messages that wait."""
        items = size = sequence = 0
        async for stored in self._walk(Area.LIVE):
            items += 1
            size += stored.size
            sequence = max(sequence, sequence_of(stored.key) or 0)
        for area in (Area.DEAD, Area.QUARANTINE):
            async for stored in self._walk(area):
                sequence = max(sequence, sequence_of(stored.key) or 0)
        self.items, self.size_bytes, self._sequence = items, size, max(self._sequence, sequence)
        return items

    @property
    def high_water(self) -> int:
        """The newest sequence given out."""
        return self._sequence

    async def oldest_ms(self) -> int | None:
        """When the message at the front was spooled."""
        for stored in await self.backend.page(Area.LIVE, "", 1):
            data = await self.backend.get(Area.LIVE, stored.key)
            with contextlib.suppress(DamagedSpoolItem):
                return decode(stored.key, data).spooled_at_ms if data else None
        return None

    async def take(self, arrivals: Sequence[Arrival]) -> list[SpoolItem | SpoolFull]:
        """Keep messages; each is durable on return, or SpoolFull in its place says that it was not taken."""
        async with self._changing:
            answers: list[SpoolItem | SpoolFull] = []
            taken: list[tuple[SpoolItem, bytes]] = []
            incoming = 0
            alarmed = ""
            for arrival in arrivals:
                item = self._item(arrival)
                data = item.encode()
                incoming += len(data)
                if not await self._fits(incoming):
                    if self.rules.on_full == "stop_acking":
                        self._sequence -= 1
                        incoming -= len(data)
                        answers.append(SpoolFull(self._full(len(data))))
                        continue
                    alarmed = arrival.downstream
                taken.append((item, data))
                answers.append(item)
            await self.backend.put(Area.LIVE, [(item.key, data) for item, data in taken])
            self.items += len(taken)
            self.size_bytes += sum(len(data) for _, data in taken)
        for item, _ in taken:
            await self._tell(
                "message.spooled", _about(item, sha256=item.sha256, downstream=item.downstream, reason=item.reason)
            )
        if alarmed:
            await self._tell("spool.alert", {"downstream": alarmed, "spool_bytes": self.size_bytes})
        return answers

    async def drain(
        self,
        replay: Replay,
        *,
        may_pass: Callable[[str], bool] = lambda downstream: True,
        stopping: Callable[[], bool] = lambda: False,
    ) -> Report:
        """Replay what waits, in order, as far as it goes. A lane whose head cannot pass keeps its place."""
        async with self._draining:
            report = Report(remaining=self.items)
            if self.items:
                await self._tell("spool.draining", {"pending": self.items})
            self._evicted.clear()
            await _Pass(self, replay, may_pass, stopping, report).run()
            report.remaining = self.items
            return report

    async def expire(self) -> int:
        """Give up what is older than `max_age_hours`. The number of messages that were."""
        if self.rules.max_age_hours is None:
            return 0
        limit = self._now_ms() - int(self.rules.max_age_hours * 3_600_000)
        expired = 0
        async with self._draining:
            async for stored in self._walk(Area.LIVE):
                item = await self.load(stored)
                if item is None:
                    continue
                if item.spooled_at_ms > limit:
                    break  # those behind it came later
                await self.give_up(item, stored.size, "retention_expired")
                expired += 1
        return expired

    async def load(self, stored: Stored) -> SpoolItem | None:
        """An item by its listing. A damaged one goes to quarantine and is told; None then, or if it is gone."""
        data = await self.backend.get(Area.LIVE, stored.key)
        if data is None:
            return None
        try:
            return decode(stored.key, data)
        except DamagedSpoolItem as error:
            await self.backend.put(Area.QUARANTINE, [(stored.key, data)])
            await self.remove([stored])
            await self._tell("message.quarantined", {"spool_key": stored.key, "reason": str(error)})
            return None

    async def give_up(self, item: SpoolItem, size: int, reason: str) -> None:
        """Move an item to the dead letters, where it stays until somebody requeues or purges it."""
        item.reason = reason
        await self.backend.put(Area.DEAD, [(item.key, item.encode())])
        await self.remove([Stored(item.key, size)])
        await self._tell("message.dead_lettered", _about(item, attempts=item.attempts, reason=reason))

    async def rewrite(self, item: SpoolItem, size: int) -> int:
        """Keep an item with its new number of attempts, in its place."""
        data = item.encode()
        await self.backend.put(Area.LIVE, [(item.key, data)])
        self.size_bytes += len(data) - size
        return len(data)

    async def remove(self, gone: Sequence[Stored]) -> None:
        """Forget messages that need not wait any more."""
        await self.backend.delete(Area.LIVE, [stored.key for stored in gone])
        self.items -= len(gone)
        self.size_bytes -= sum(stored.size for stored in gone)

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
            await self._tell("message.requeued", _about(item))
            back += 1
        return back

    @property
    def evicted(self) -> set[str]:
        """What was given up to make room since the pass began."""
        return self._evicted

    @contextlib.contextmanager
    def replaying(self, keys: Sequence[str]) -> Iterator[None]:
        """While messages are on their way out they are not evicted."""
        self._replaying.update(keys)
        try:
            yield
        finally:
            self._replaying.difference_update(keys)

    async def tell_replayed(self, item: SpoolItem, answer: Replayed) -> None:
        """Write on the journal which run a message became."""
        await self._tell(
            "message.replayed", _about(item, execution_id=answer.execution_id, duplicate=answer.outcome == "duplicate")
        )

    def _item(self, arrival: Arrival) -> SpoolItem:
        self._sequence += 1
        return SpoolItem(
            subscription=self.subscription,
            source=self.source,
            message_id=arrival.message_id,
            idempotency_key=arrival.idempotency_key,
            dedup_key=arrival.idempotency_key or arrival.message_id,
            recv_seq=self._sequence,
            ordering_key=arrival.ordering_key,
            downstream=arrival.downstream,
            sha256=digest(arrival.message.get("data")),
            attempts=0,
            spooled_at_ms=self._now_ms(),
            reason=arrival.reason,
            message=arrival.message,
            plan=arrival.plan,
        )

    async def _fits(self, incoming: int) -> bool:
        """Whether there is room, once `drop_to_dlq` has made some from the front."""
        ceiling = self.rules.max_bytes
        if ceiling is None or self.size_bytes + incoming <= ceiling:
            return True
        if self.rules.on_full != "drop_to_dlq":
            return False
        while self.items and self.size_bytes + incoming > ceiling:
            front = [each for each in await self.backend.page(Area.LIVE, "", 1000) if each.key not in self._replaying]
            if not front:
                return True  # all that is left is on its way out
            for stored in front:
                if self.size_bytes + incoming <= ceiling:
                    break
                self._evicted.add(stored.key)
                item = await self.load(stored)
                if item is not None:
                    await self.give_up(item, stored.size, "on_full_evicted")
        return True

    def _full(self, incoming: int) -> str:
        return (
            f"The spool of {self.subscription} holds {self.size_bytes:,} of {self.rules.max_bytes:,} bytes; a message"
            f" of {incoming:,} does not fit. Raise spool.retention.max_bytes, or bring the downstream back."
        )

    async def _walk(self, area: Area) -> AsyncIterator[Stored]:
        after = ""
        while page := await self.backend.page(area, after, _PAGE):
            for stored in page:
                yield stored
            after = page[-1].key


class _Pass:
    """One walk over the spool from front to back."""

    def __init__(
        self,
        spool: Spool,
        replay: Replay,
        may_pass: Callable[[str], bool],
        stopping: Callable[[], bool],
        report: Report,
    ) -> None:
        self.spool = spool
        self.replay = replay
        self.may_pass = may_pass
        self.stopping = stopping
        self.report = report
        self.pace = Pace(spool.rules.rate_per_sec)
        self.stalled: set[Lane] = set()

    async def run(self) -> None:
        after = ""
        while not self._is_over() and (page := await self._page(after)):
            lanes = await self._lanes(page)
            while lanes and not self._is_over():
                await self._round(lanes)
            after = page[-1].key

    def _is_over(self) -> bool:
        # With one lane for all there is nothing behind a stalled head that may pass it.
        return self.stopping() or (self.spool.rules.ordering == "global" and bool(self.stalled))

    async def _page(self, after: str) -> list[Stored]:
        page = await self.spool.backend.page(Area.LIVE, after, _PAGE)
        size = 0
        for index, stored in enumerate(page):
            size += stored.size
            if size > _PAGE_BYTES and index:
                return page[:index]
        return page

    def _lane(self, item: SpoolItem) -> Lane:
        match self.spool.rules.ordering:
            case "global":
                return ()
            case "per_key":
                return (item.downstream, item.ordering_key or "__global__")
            case "none":
                return (item.key,)

    async def _lanes(self, page: list[Stored]) -> Lanes:
        lanes: Lanes = OrderedDict()
        for start in range(0, len(page), _READS):
            some = page[start : start + _READS]
            for stored, item in zip(some, await asyncio.gather(*map(self.spool.load, some)), strict=True):
                if item is None:
                    self.report.quarantined.append(stored.key)
                elif (lane := self._lane(item)) not in self.stalled:
                    lanes.setdefault(lane, deque()).append((item, stored.size))
        return lanes

    async def _round(self, lanes: Lanes) -> None:
        """Replay the heads of the lanes, one a lane: what is behind a head waits for its outcome."""
        heads = []
        for lane in list(islice(lanes, self.pace.at_once(_ROUND))):
            item, size = lanes[lane][0]
            if item.key in self.spool.evicted:
                self._step(lanes, lane)
            elif self.may_pass(item.downstream):
                heads.append((lane, item, size))
            else:
                self._stall(lanes, lane)
        if not heads:
            return
        await self.pace.wait(len(heads))
        with self.spool.replaying([item.key for _, item, _ in heads]):
            answers = await self.replay([item for _, item, _ in heads])
            await self._settle(lanes, heads, answers)

    async def _settle(self, lanes: Lanes, heads: list[tuple[Lane, SpoolItem, int]], answers: list[Replayed]) -> None:
        gone: list[Stored] = []
        for (lane, item, size), answer in zip(heads, answers, strict=True):
            if answer.outcome in ("started", "duplicate"):
                gone.append(Stored(item.key, size))
                await self.spool.tell_replayed(item, answer)
                self.report.replayed += answer.outcome == "started"
                self.report.deduped += answer.outcome == "duplicate"
            elif answer.outcome == "away" or not await self._is_poison(item, size):
                self._stall(lanes, lane)
                continue
            self._step(lanes, lane)
        await self.spool.remove(gone)

    def _step(self, lanes: Lanes, lane: Lane) -> None:
        lanes[lane].popleft()
        lanes.move_to_end(lane)
        if not lanes[lane]:
            del lanes[lane]

    async def _is_poison(self, item: SpoolItem, size: int) -> bool:
        item.attempts += 1
        if item.attempts < max(1, self.spool.rules.max_replay_attempts):
            await self.spool.rewrite(item, size)
            return False
        await self.spool.give_up(item, size, "max_replay_attempts")
        self.report.dead_lettered.append(item.key)
        return True

    def _stall(self, lanes: Lanes, lane: Lane) -> None:
        del lanes[lane]
        if self.spool.rules.ordering != "none":
            self.stalled.add(lane)


def _about(item: SpoolItem, **more: Any) -> dict[str, Any]:
    return {"message_id": item.message_id, "recv_seq": item.recv_seq, "spool_ref": item.ref, **more}
