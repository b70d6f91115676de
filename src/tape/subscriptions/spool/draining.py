"""How what waited leaves a spool: from front to back, and never past what must not be overtaken."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Literal, NamedTuple

import msgspec

from tape.errors import DamagedSpoolItem
from tape.subscriptions import events
from tape.subscriptions.spool.backend import Area, Stored
from tape.subscriptions.spool.item import SpoolItem
from tape.subscriptions.spool.pace import Pace
from tape.subscriptions.spool.spool import PAGE, Lane, Spool

_PAGE_BYTES = 32 << 20  # of messages held at once
_ROUND = 500  # messages handed to one replay
_READS = 64

Lanes = OrderedDict[Lane, deque[tuple[SpoolItem, int]]]


class Replayed(NamedTuple):
    """What became of one replay. `refused` is the item's own fault and counts as an attempt; `away` does not."""

    outcome: Literal["started", "duplicate", "refused", "away"]
    execution_id: int = 0
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


async def drain(
    spool: Spool,
    replay: Replay,
    *,
    may_pass: Callable[[str], bool] = lambda downstream: True,
    stopping: Callable[[], bool] = lambda: False,
) -> Report:
    """Replay what waits, in order, as far as it goes. A lane whose head cannot pass keeps its place."""
    async with spool.draining:
        report = Report(remaining=spool.items)
        if not spool.items or not await spool.backend.claim():
            return report  # nothing waits, or another process is at it
        try:
            spool.evicted.clear()
            this = _Pass(spool, replay, may_pass, stopping, report)
            await this.run()
        finally:
            await spool.backend.release()
        if spool.items and this.saw_everything:
            await spool.open()  # another process, at the same place, has let some of them go
        report.remaining = spool.items
        return report


class _Pass:
    """One walk over the spool."""

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
        self.saw_everything = False
        self.is_told = False

    async def run(self) -> None:
        after = ""
        while not self._is_over():
            page = await self._page(after)
            if not page:
                self.saw_everything = not self.stalled
                return
            lanes = await self._lanes(page)
            while lanes and not self._is_over():
                await self._round(lanes)
            after = page[-1].key

    def _is_over(self) -> bool:
        # With one lane for all there is nothing behind a stalled head that may pass it.
        return self.stopping() or (self.spool.rules.ordering == "global" and bool(self.stalled))

    async def _page(self, after: str) -> list[Stored]:
        page = await self.spool.backend.page(Area.LIVE, after, PAGE)
        size = 0
        for index, stored in enumerate(page):
            size += stored.size
            if size > _PAGE_BYTES and index:
                return page[:index]
        return page

    async def _lanes(self, page: list[Stored]) -> Lanes:
        lanes: Lanes = OrderedDict()
        for start in range(0, len(page), _READS):
            some = page[start : start + _READS]
            for stored, item in zip(some, await asyncio.gather(*map(self._load, some)), strict=True):
                if item is None:
                    continue
                lane = self.spool.rules.lane(item.downstream, item.ordering_key, item.key)
                if lane not in self.stalled:
                    lanes.setdefault(lane, deque()).append((item, stored.size))
        return lanes

    async def _load(self, stored: Stored) -> SpoolItem | None:
        try:
            return await self.spool.load(stored)
        except DamagedSpoolItem:
            self.report.quarantined.append(stored.key)
            return None

    async def _round(self, lanes: Lanes) -> None:
        """Replay the heads of the lanes, one a lane: what is behind a head waits for its outcome."""
        heads = []
        for lane in list(islice(lanes, self.pace.at_once(_ROUND))):
            item, size = lanes[lane][0]
            if item.key in self.spool.evicted:
                self._step(lanes, lane)
            elif item.key not in self.spool.untold and self.may_pass(item.downstream):
                heads.append((lane, item, size))
            else:
                self._stall(lanes, lane)
        if not heads:
            return
        if not self.is_told:
            self.is_told = True
            await self.spool.tell([events.spool_draining(self.spool.about, self.spool.items)])
        await self.pace.wait(len(heads))
        with self.spool.replaying([item.key for _, item, _ in heads]):
            answers = await self.replay([item for _, item, _ in heads])
            await self._settle(lanes, heads, answers)

    async def _settle(self, lanes: Lanes, heads: list[tuple[Lane, SpoolItem, int]], answers: list[Replayed]) -> None:
        gone: list[tuple[SpoolItem, int]] = []
        told = []
        for (lane, item, size), answer in zip(heads, answers, strict=True):
            if answer.outcome in ("started", "duplicate"):
                gone.append((item, size))
                told.append(
                    events.replayed(self.spool.about, item.message_id, item.recv_seq, item.ref, answer.execution_id)
                )
                self.report.replayed += answer.outcome == "started"
                self.report.deduped += answer.outcome == "duplicate"
            elif answer.outcome == "away" or not await self._is_poison(item, size):
                self._stall(lanes, lane)
                continue
            self._step(lanes, lane)
        if gone:
            # Told before it is removed: after a crash in between it is told again, and never not at all.
            await self.spool.tell(told)
            await self.spool.remove(gone)

    async def _is_poison(self, item: SpoolItem, size: int) -> bool:
        item.attempts += 1
        if item.attempts < max(1, self.spool.rules.max_replay_attempts):
            await self.spool.rewrite(item, size)
            return False
        await self.spool.give_up(item, size, "max_replay_attempts")
        self.report.dead_lettered.append(item.key)
        return True

    def _step(self, lanes: Lanes, lane: Lane) -> None:
        lanes[lane].popleft()
        lanes.move_to_end(lane)
        if not lanes[lane]:
            del lanes[lane]

    def _stall(self, lanes: Lanes, lane: Lane) -> None:
        del lanes[lane]
        if self.spool.rules.ordering != "none":
            self.stalled.add(lane)
