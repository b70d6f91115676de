"""Simulation: which tasks matches would have become, in the time of their entries and without a database.

It follows the rules of `enqueue` and `claims`: a match replaces a waiting match of its subject (debounce), and the
rate limit delays tasks. Handlers are assumed to be connected and to take no time: `max_concurrency` depends on their
duration, which the journal does not have.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

import msgspec

from tape.engine.reactions.claims import MAX_AT_ONCE
from tape.model.task_pacing import pace

T = TypeVar("T")


class SimulatedTask(msgspec.Struct, Generic[T]):
    """A simulated task: its newest and its first entry, when it is due and when it is claimed."""

    newest: T
    first: T
    coalesced: int
    due_ms: int
    at_ms: int = 0


class Simulation(Generic[T]):
    """Takes matches in the order of the journal and yields the tasks that they become."""

    def __init__(self, debounce_ms: int = 0, rate_limit_per_s: int = 0) -> None:
        self._debounce_ms = debounce_ms
        self._rate = rate_limit_per_s
        # In the order in which they are due: timestamps never decrease along the journal.
        self._waiting: OrderedDict[object, SimulatedTask[T]] = OrderedDict()
        self._count = 0
        self._next_us = 0
        self._next_check_ms = 0

    @property
    def waiting(self) -> Iterable[SimulatedTask[T]]:
        """Tasks that are not claimed yet."""
        return self._waiting.values()

    def add(self, thing: T, subject: Hashable, ts_ms: int) -> Iterator[SimulatedTask[T]]:
        """Add a match at a time; yields the tasks that are claimed up to that time."""
        yield from self.release_until(ts_ms)
        due = ts_ms + self._debounce_ms
        if not self._debounce_ms:
            self._count += 1
            self._waiting[self._count] = SimulatedTask(thing, thing, 0, due)
        elif (waiting := self._waiting.get(subject)) is None:
            self._waiting[subject] = SimulatedTask(thing, thing, 0, due)
        else:
            waiting.newest, waiting.due_ms = thing, due
            waiting.coalesced += 1
            self._waiting.move_to_end(subject)

    def release_until(self, ts_ms: int) -> Iterator[SimulatedTask[T]]:
        """Yield the tasks that are claimed up to a time."""
        while self._waiting:
            due = next(iter(self._waiting.values())).due_ms
            at = max(due, self._next_check_ms)
            if at > ts_ms:
                return
            yield from self._release(at)

    def release_all(self) -> Iterator[SimulatedTask[T]]:
        """Yield all remaining tasks, as if no further match came."""
        while self._waiting:
            due = next(iter(self._waiting.values())).due_ms
            yield from self._release(max(due, self._next_check_ms))

    def _release(self, at: int) -> Iterator[SimulatedTask[T]]:
        """Yield the tasks that a claim at this time would get, by the rules of `claims.claim_up_to`."""
        free_slots, again_us = MAX_AT_ONCE, 0
        if self._rate:
            free_slots, _, again_us = pace(self._rate, self._next_us, at * 1_000, MAX_AT_ONCE)
        handed = 0
        while handed < free_slots and self._waiting:
            key, first = next(iter(self._waiting.items()))
            if first.due_ms > at:
                break
            del self._waiting[key]
            first.at_ms = at
            handed += 1
            yield first
        if self._rate:
            if handed:
                _, self._next_us, again_us = pace(self._rate, self._next_us, at * 1_000, handed)
            self._next_check_ms = at if handed == MAX_AT_ONCE else -(-again_us // 1_000) if handed == free_slots else 0


class QueueStatistics(msgspec.Struct):
    """Effect of a rate limit: how many tasks waited, the longest wait, and the longest queue with its time."""

    waited: int = 0
    longest_wait_ms: int = 0
    longest: int = 0
    longest_at_ms: int = 0


class QueueMonitor:
    """Measures the queue from the tasks that are claimed, in order."""

    def __init__(self) -> None:
        self.queue = QueueStatistics()
        self._out: deque[int] = deque()

    def observe(self, due_ms: int, at_ms: int) -> None:
        """Record one task by the times when it was due and claimed."""
        out = self._out
        while out and out[0] <= due_ms:
            out.popleft()
        if at_ms <= due_ms:
            return
        out.append(at_ms)
        queue = self.queue
        queue.waited += 1
        queue.longest_wait_ms = max(queue.longest_wait_ms, at_ms - due_ms)
        if len(out) > queue.longest:
            queue.longest, queue.longest_at_ms = len(out), due_ms
