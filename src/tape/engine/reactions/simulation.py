"""A rehearsal: what would become of matches, in the time of their entries instead of now.

The same rules as `enqueueing` and `claiming` follow, played without a database: a match that comes while one of
its subject still waits takes its place, and a rate lets so many go and holds up the others. Handlers are taken to
be there and quick: `max_concurrency` depends on how long they need, which no history tells.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

import msgspec

from tape.engine.reactions.claims import MAX_AT_ONCE
from tape.model.task_pacing import pace

T = TypeVar("T")


class Fired(msgspec.Struct, Generic[T]):
    """A task that would have been: its newest entry, the first of those that went in, when due and when handed out."""

    newest: T
    first: T
    coalesced: int
    due_ms: int
    at_ms: int = 0


class Rehearsal(Generic[T]):
    """Takes matches in the order of the journal and tells which of them fire."""

    def __init__(self, debounce_ms: int = 0, rate_limit_per_s: int = 0) -> None:
        self._debounce_ms = debounce_ms
        self._rate = rate_limit_per_s
        # In the order in which they are due: time does not run backwards along the journal.
        self._waiting: OrderedDict[object, Fired[T]] = OrderedDict()
        self._count = 0
        self._next_us = 0
        self._again_ms = 0

    @property
    def waiting(self) -> Iterable[Fired[T]]:
        """What has come and is not handed out yet."""
        return self._waiting.values()

    def add(self, thing: T, subject: str, ts_ms: int) -> Iterator[Fired[T]]:
        """Let a match come at a time; what was handed out up to then."""
        yield from self.up_to(ts_ms)
        due = ts_ms + self._debounce_ms
        if not self._debounce_ms:
            self._count += 1
            self._waiting[self._count] = Fired(thing, thing, 0, due)
        elif (waiting := self._waiting.get(subject)) is None:
            self._waiting[subject] = Fired(thing, thing, 0, due)
        else:
            waiting.newest, waiting.due_ms = thing, due
            waiting.coalesced += 1
            self._waiting.move_to_end(subject)

    def up_to(self, ts_ms: int) -> Iterator[Fired[T]]:
        """What is handed out up to a time."""
        while self._waiting:
            due = next(iter(self._waiting.values())).due_ms
            at = max(due, self._again_ms)
            if at > ts_ms:
                return
            yield from self._hand_out(at)

    def rest(self) -> Iterator[Fired[T]]:
        """What is handed out if nothing comes any more."""
        while self._waiting:
            due = next(iter(self._waiting.values())).due_ms
            yield from self._hand_out(max(due, self._again_ms))

    def _hand_out(self, at: int) -> Iterator[Fired[T]]:
        """What somebody who asks at that time gets, as `claiming.take` decides it."""
        room, again_us = MAX_AT_ONCE, 0
        if self._rate:
            room, _, again_us = pace(self._rate, self._next_us, at * 1_000, MAX_AT_ONCE)
        handed = 0
        while handed < room and self._waiting:
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
            self._again_ms = at if handed == MAX_AT_ONCE else -(-again_us // 1_000) if handed == room else 0


class Queue(msgspec.Struct):
    """How a rate would have held things up: how many waited, how long the longest, and when the most did at once."""

    waited: int = 0
    longest_wait_ms: int = 0
    longest: int = 0
    longest_at_ms: int = 0


class Counting:
    """Sees what is handed out, in order, and knows how the queue stood."""

    def __init__(self) -> None:
        self.queue = Queue()
        self._out: deque[int] = deque()

    def see(self, due_ms: int, at_ms: int) -> None:
        """One was due and was handed out."""
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
