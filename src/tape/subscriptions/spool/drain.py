"""Replay of a spool: oldest first, each lane in order."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import islice

import msgspec

from tape.errors import DamagedSpoolItem
from tape.model.dispatch_result import RunDispatchResult
from tape.subscriptions import events
from tape.subscriptions.spool.backend import Area, StoredObject
from tape.subscriptions.spool.item import SpoolItem
from tape.subscriptions.spool.spool import Lane, Spool

_HELD = 2_500  # messages in memory,
_HELD_BYTES = 16 << 20  # and their bytes
_ROUND = 500  # messages of one replay call
_READS = 250

Lanes = OrderedDict[Lane, deque[tuple[SpoolItem, int]]]
# Dispatches several items, each lane in order; after a failure the rest of its lane is skipped.
Replay = Callable[[list[SpoolItem], Sequence[Lane]], Awaitable[list[RunDispatchResult]]]


class DrainReport(msgspec.Struct, kw_only=True):
    """The result of one pass over the spool."""

    replayed: int = 0
    deduped: int = 0
    dead_lettered: list[str] = msgspec.field(default_factory=list)
    quarantined: list[str] = msgspec.field(default_factory=list)
    remaining: int = 0

    @property
    def fully_drained(self) -> bool:
        """Whether the spool is empty."""
        return self.remaining == 0


async def drain(
    spool: Spool,
    replay: Replay,
    *,
    may_pass: Callable[[str, Lane], bool] = lambda downstream, lane: True,
    stopping: Callable[[], bool] = lambda: False,
) -> DrainReport:
    """Replay the spool in order. A lane whose first message fails is left for the next pass."""
    async with spool.draining:
        report = DrainReport(remaining=spool.items)
        if not spool.items or not await spool.backend.claim():
            return report  # empty, or another process drains it
        try:
            spool.evicted.clear()
            this = _DrainPass(spool, replay, may_pass, stopping, report)
            await this.run()
        finally:
            await spool.backend.release()
        if spool.items and this.saw_everything:
            await spool.open()  # another process removed items from the same backend
        elif spool.items != report.remaining:
            spool.front.reset()
            await spool.refresh_oldest()
        report.remaining = spool.items
        return report


class _DrainPass:
    """One pass over the spool."""

    def __init__(
        self,
        spool: Spool,
        replay: Replay,
        may_pass: Callable[[str, Lane], bool],
        stopping: Callable[[], bool],
        report: DrainReport,
    ) -> None:
        self.spool = spool
        self.replay = replay
        self.may_pass = may_pass
        self.stopping = stopping
        self.report = report
        self.replay_rate = spool.replay_rate
        self.stalled: set[Lane] = set()
        self.saw_everything = False
        self.has_emitted_start = False
        self.left_ms: list[int] = []  # when the oldest message of a stalled lane was spooled

    async def run(self) -> None:
        async for some in self._listed():
            lanes = await self._lanes(some)
            while lanes and not self._is_ending():
                await self._round(lanes)
            if self._is_ending():
                return
        self.saw_everything = not self.stalled

    def _is_ending(self) -> bool:
        # With global order a stalled head blocks everything behind it.
        return self.stopping() or (self.spool.rules.ordering == "global" and bool(self.stalled))

    async def _listed(self) -> AsyncIterator[list[StoredObject]]:
        """Live items in chunks that fit in memory."""
        some: list[StoredObject] = []
        size, most = 0, _ROUND  # if all lanes are stalled, the first round finds out
        async for stored in self.spool.walk(Area.LIVE, first=_ROUND + 1):
            if some and (len(some) == most or size + stored.size > _HELD_BYTES):
                yield some
                some, size, most = [], 0, _HELD
            some.append(stored)
            size += stored.size
        if some:
            yield some

    async def _lanes(self, page: list[StoredObject]) -> Lanes:
        lanes: Lanes = OrderedDict()
        for start in range(0, len(page), _READS):
            some = page[start : start + _READS]
            read = await self.spool.backend.get_many(Area.LIVE, [stored.key for stored in some])
            for stored, data in zip(some, read, strict=True):
                item = await self._decode_or_quarantine(stored, data)
                if item is None:
                    continue
                lane = self.spool.rules.lane(item.downstream, item.ordering_key, item.key)
                if lane not in self.stalled:
                    lanes.setdefault(lane, deque()).append((item, stored.size))
        return lanes

    async def _decode_or_quarantine(self, stored: StoredObject, data: bytes | None) -> SpoolItem | None:
        try:
            return await self.spool.decode_or_quarantine(stored, data)
        except DamagedSpoolItem:
            self.report.quarantined.append(stored.key)
            return None

    async def _round(self, lanes: Lanes) -> None:
        """Replay the front of each lane, with an equal share per lane."""
        limit = self.replay_rate.burst(_ROUND)
        share = max(1, limit // len(lanes))
        self.spool.oldest_ms = min([*self.left_ms, *(waiting[0][0].spooled_at_ms for waiting in lanes.values())])
        going: list[tuple[Lane, SpoolItem, int]] = []
        for lane in list(islice(lanes, limit)):
            going += self._going(lanes, lane, share)
        if not going:
            return
        if not self.has_emitted_start:
            self.has_emitted_start = True
            await self.spool.emit([events.spool_draining(self.spool.subscription, self.spool.items)])
        await self.replay_rate.wait(len(going))
        with self.spool.replaying([item.key for _, item, _ in going]):
            answers = await self.replay([item for _, item, _ in going], [lane for lane, _, _ in going])
            await self._settle(lanes, going, answers)

    def _going(self, lanes: Lanes, lane: Lane, share: int) -> list[tuple[Lane, SpoolItem, int]]:
        """Items at the front of a lane to dispatch now; a lane with none is stalled."""
        waiting = lanes[lane]
        while waiting and self.spool.is_evicted(waiting[0][0].key):
            waiting.popleft()
        going: list[tuple[Lane, SpoolItem, int]] = []
        for item, size in islice(waiting, share):
            # A half-open circuit passes a single probe.
            if (
                self.spool.is_evicted(item.key)
                or item.key in self.spool.unemitted
                or not self.may_pass(item.downstream, lane)
            ):
                break
            going.append((lane, item, size))
        if not waiting:
            del lanes[lane]
        elif not going:
            self._stall(lanes, lane)
        else:
            lanes.move_to_end(lane)
        return going

    async def _settle(
        self, lanes: Lanes, going: list[tuple[Lane, SpoolItem, int]], answers: list[RunDispatchResult]
    ) -> None:
        gone: list[tuple[SpoolItem, int]] = []
        to_emit = []
        stopped: set[Lane] = set()
        for (lane, item, size), answer in zip(going, answers, strict=True):
            if lane in stopped:
                continue  # after a failure of its lane: it stays in the spool
            if answer.outcome in ("started", "duplicate"):
                gone.append((item, size))
                to_emit.append(
                    events.replayed(
                        self.spool.subscription, item.message_id, item.recv_seq, item.ref, answer.execution_id
                    )
                )
                self.report.replayed += answer.outcome == "started"
                self.report.deduped += answer.outcome == "duplicate"
            elif answer.outcome == "rejected" and await self._is_poison(item, size):
                stopped.add(lane)
            else:
                stopped.add(lane)
                self._stall(lanes, lane)
                continue
            self._step(lanes, lane)
        if gone:
            # The event is emitted before the removal: after a crash in between it is emitted twice, never lost.
            await self.spool.emit(to_emit)
            await self.spool.remove(gone)

    async def _is_poison(self, item: SpoolItem, size: int) -> bool:
        item.attempts += 1
        if item.attempts < max(1, self.spool.rules.max_replay_attempts):
            await self.spool.rewrite(item, size)
            return False
        await self.spool.dead_letter([(item, size)], "max_replay_attempts")
        self.report.dead_lettered.append(item.key)
        return True

    def _step(self, lanes: Lanes, lane: Lane) -> None:
        lanes[lane].popleft()
        if not lanes[lane]:
            del lanes[lane]

    def _stall(self, lanes: Lanes, lane: Lane) -> None:
        since_ms = lanes.pop(lane)[0][0].spooled_at_ms
        self.left_ms = [min([since_ms, *self.left_ms])]
        if self.spool.rules.ordering != "none":
            self.stalled.add(lane)
