"""The scheduler of a server: does what is due in the database, and sleeps until the next time.

Every server of a database runs one. What is due is done in one transaction with the note that it is done, so that one
server does it, once; a server that dies before the commit leaves it to the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from tape.base.clock import now_ms
from tape.base.retry import WHILE_UNAVAILABLE, Backoff
from tape.errors import ServerStopping, StoreBusy, StoreUnavailable
from tape.store import Database, Reader, Transaction

log = logging.getLogger(__name__)

T = TypeVar("T")

# What sets a time notifies this channel, so that the scheduler of its process looks at it.
CHANNEL = "tape_due"
# The longest sleep: another process may set an earlier time, or the clock may be set.
POLL_S = 1.0
# Things that are done in one transaction, so that other writers get their turn.
AT_ONCE = 100
MAINTENANCE_S = 60.0
# A thing whose handling fails is tried again after this time.
RETRY_MS = 60_000


class Fire(Protocol):
    """Does up to so many things that are due; returns how many, by outcome."""

    def __call__(self, tx: Transaction, limit: int) -> Counter[str]: ...


class DueWork(NamedTuple):
    """One kind of due work: its name, the next time of it (0: none), how it is done, and how it is kept in order.

    `maintain` runs once a minute.
    """

    name: str
    next_time: Callable[[Reader], int]
    fire: Fire
    maintain: Callable[[Transaction], object]


class Scheduler:
    """Does due work as long as the server runs. `run` is a background task."""

    def __init__(self, database: Database, works: Sequence[DueWork]) -> None:
        self._database = database
        self._metrics = database.metrics
        self._works = works
        self._maintained_at = float("-inf")
        self._next: dict[str, int] = {}
        self._woken = asyncio.Event()
        database.on_notice(CHANNEL, self._woken.set)
        for work in works:
            self._metrics.scheduler_overdue.labels(work.name).set_function(partial(self._overdue_s, work.name))

    async def run(self) -> None:
        """Do due work until cancelled."""
        backoff = Backoff(WHILE_UNAVAILABLE)
        while True:
            self._woken.clear()
            try:
                delay_s = await self.run_due()
            except ServerStopping:
                return
            except (StoreUnavailable, StoreBusy) as error:  # readiness reports it by itself; what is due waits
                log.warning("due work waits for the store: %s", error)
                await backoff.wait_async()
                continue
            backoff.reset()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), delay_s)

    async def run_due(self) -> float:
        """Do everything that is due; the seconds until the next look."""
        if time.monotonic() - self._maintained_at >= MAINTENANCE_S:
            for work in self._works:
                await self._database.write(work.maintain)
            self._maintained_at = time.monotonic()
        delay_ms = POLL_S * 1_000
        for work in self._works:
            while True:
                due = self._next[work.name] = await self._database.read(work.next_time)
                if not due or due > now_ms():
                    break
                done = await self._database.write(partial(work.fire, limit=AT_ONCE))
                for outcome, count in done.items():
                    self._metrics.scheduler_fired.labels(work.name, outcome).inc(count)
                if not done:
                    break  # another server has done it
            if due:
                delay_ms = min(delay_ms, max(due - now_ms(), 0))
        return max(delay_ms / 1_000, 0.005)

    def _overdue_s(self, name: str) -> float:
        due = self._next.get(name, 0)
        return max(now_ms() - due, 0) / 1_000 if due else 0.0


def fire_each(
    tx: Transaction,
    rows: Iterable[T],
    fire: Callable[[T], str],
    postpone: Callable[[T, int], object],
) -> Counter[str]:
    """Do each thing by itself: one that fails is logged, and postponed by a minute, and the others are done."""
    done: Counter[str] = Counter()
    for row in rows:
        try:
            with tx.savepoint():
                outcome = fire(row)
        except Exception as error:
            if not tx.survives(error):
                raise
            log.exception("due work failed, trying again in %d s: %r", RETRY_MS // 1_000, row)
            postpone(row, now_ms() + RETRY_MS)
            outcome = "failed"
        done[outcome] += 1
    return done
