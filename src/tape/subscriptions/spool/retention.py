"""Retention of a spool: the oldest messages become dead letters by age, or by size when the spool is full."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tape.subscriptions.spool.item import SpoolItem
    from tape.subscriptions.spool.spool import Spool

_AT_ONCE = 500


async def expire(spool: Spool, limit_ms: int) -> int:
    """Dead-letter messages that were spooled at `limit_ms` or earlier. Returns their number."""
    expired = 0
    async with spool.draining:
        while old := await _expire_batch(spool, limit_ms):
            expired += old
        await spool.refresh_oldest()
    return expired


async def _expire_batch(spool: Spool, limit_ms: int) -> int:
    old: list[tuple[SpoolItem, int]] = []
    with spool.evicting() as may_evict:
        while len(old) < _AT_ONCE and (stored := await spool.front.peek()) is not None:
            item = await spool.load_intact(stored)
            if item is not None and item.spooled_at_ms > limit_ms:
                break  # later ones are newer
            spool.front.step(stored)
            if item is not None and may_evict(stored.key):
                old.append((item, stored.size))
        await spool.dead_letter(old, "retention_expired")
    return len(old)


async def evict_oldest(spool: Spool, excess: int) -> None:
    """Dead-letter `excess` bytes of the oldest messages. Messages that are being replayed are skipped."""
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
