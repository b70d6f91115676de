"""How much may wait, and how long: the oldest are given up for their age, or to make room."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tape.subscriptions.spool.item import SpoolItem
    from tape.subscriptions.spool.spool import Spool

_AT_ONCE = 500


async def expire(spool: Spool, limit_ms: int) -> int:
    """Give up what was spooled at a moment or before it. The number of messages that were."""
    expired = 0
    async with spool.draining:
        while old := await _older(spool, limit_ms):
            expired += old
        await spool.refresh_oldest()
    return expired


async def _older(spool: Spool, limit_ms: int) -> int:
    old: list[tuple[SpoolItem, int]] = []
    with spool.evicting() as may_evict:
        while len(old) < _AT_ONCE and (stored := await spool.front.peek()) is not None:
            item = await spool.load_intact(stored)
            if item is not None and item.spooled_at_ms > limit_ms:
                break  # those behind it came later
            spool.front.step(stored)
            if item is not None and may_evict(stored.key):
                old.append((item, stored.size))
        await spool.dead_letter(old, "retention_expired")
    return len(old)


async def evict_oldest(spool: Spool, excess: int) -> None:
    """Give up so many bytes from the front. What is on its way out leaves by itself and is passed over."""
    evicted: list[tuple[SpoolItem, int]] = []
    was_passed_over = False
    with spool.evicting() as may_evict:
        while excess > 0 and (stored := await spool.front.peek()) is not None:
            spool.front.step(stored)
            if not may_evict(stored.key):
                was_passed_over = True
            elif (item := await spool.load_intact(stored)) is not None:
                evicted.append((item, stored.size))
                excess -= stored.size
        await spool.dead_letter(evicted, "on_full_evicted")
    if was_passed_over:
        spool.front.reset()
    await spool.refresh_oldest()
