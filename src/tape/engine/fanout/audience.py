"""Live subscribers that may see the same entries: what they share, so that one more costs one write a wake-up."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from tape.model.entry import Entry

if TYPE_CHECKING:
    from tape.engine.fanout.live import LiveSubscription


class LiveScope(msgspec.Struct, frozen=True):
    """What a live subscription sees. Without an identity: everybody's entries."""

    identity: tuple[str, str, str] | None
    run: str = ""
    types: frozenset[str] = frozenset()

    def matches(self, entry: Entry) -> bool:
        """Whether an entry may be seen."""
        return (
            self.identity is None or self.identity == (entry.tenant, entry.user, entry.session)
        ) and self.matches_run_and_type(entry)

    def matches_run_and_type(self, entry: Entry) -> bool:
        """Whether an entry of the right identity is wanted."""
        return (not self.run or entry.run_id == self.run) and (not self.types or entry.type in self.types)


class Audience:
    """Subscribers with one scope, and the frames that at least one of them has still to get.

    Frames are counted from the beginning of the audience: `start` is the number of the oldest kept, `end` the
    number that the next will have. Those who are `ready` have everything before `flushed`.
    """

    def __init__(self, scope: LiveScope, capacity: int, join: Callable[[Sequence[bytes]], bytes]) -> None:
        self.scope = scope
        self.has_no_filter = not scope.run and not scope.types
        self.members: dict[LiveSubscription, None] = {}
        self.ready: dict[LiveSubscription, None] = {}
        self.start = self.end = self._flushed = 0
        self._capacity = capacity
        self._join = join
        self._frames: deque[bytes] = deque()
        self._ids: deque[int] = deque()
        # The ids of frames that went since somebody last looked what was lost.
        self._dropped_ids: deque[int] = deque()
        self._is_due = False
        self.last_id = 0

    def append(self, id_: int, frame: bytes) -> None:
        """Keep a frame for everyone, and have it sent within this turn of the loop."""
        if self.end - self.start >= self._capacity:
            if self._flushed <= self.start:
                self.flush()  # those who can take it must not lose anything to a burst
            if self.end - self.start >= self._capacity:
                self._frames.popleft()
                self._dropped_ids.append(self._ids.popleft())
                self.start += 1
        self._frames.append(frame)
        self._ids.append(id_)
        self.last_id = id_
        self.end += 1
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._flush_when_due)

    def flush(self) -> None:
        """Write everything to everyone who can take it; bytes that several get are joined once."""
        end = self.end
        joined: dict[int, bytes] = {}
        for member in list(self.ready):
            begin = member.index
            if member.after:
                begin = self._after(begin, member.after)
            if begin >= end:
                member.index = end
                continue
            data = joined.get(begin)
            if data is None:
                data = joined[begin] = self.frames_from(begin)
            member.index = end
            member.after = 0
            member.outlet.write(data)
        self._flushed = end
        if len(self.ready) == len(self.members):
            self._frames.clear()
            self._ids.clear()
            self._dropped_ids.clear()
            self.start = end

    def send_to(self, member: LiveSubscription) -> None:
        """Write everything to one who can take it again."""
        begin = self._after(member.index, member.after) if member.after else member.index
        member.index = self.end
        if begin < self.end:
            member.after = 0
            member.outlet.write(self.frames_from(begin))

    def frames_from(self, index: int) -> bytes:
        """Everything kept from a number on, joined."""
        return self._join(list(islice(self._frames, index - self.start, None)))

    def dropped_before(self, index: int) -> tuple[int, int, int] | None:
        """The first and last id, and the number, of the frames from `index` on that are gone."""
        count = self.start - index
        if count <= 0:
            return None
        return self._dropped_ids[-count], self._dropped_ids[-1], count

    def clear_dropped(self) -> None:
        """Everyone has been told: the ids of what is gone are needed no more."""
        self._dropped_ids.clear()

    def _flush_when_due(self) -> None:
        self._is_due = False
        self.flush()

    def _after(self, index: int, id_: int) -> int:
        """The number of the first frame whose id is beyond the given one."""
        for offset in range(max(index - self.start, 0), len(self._ids)):
            if self._ids[offset] > id_:
                return self.start + offset
        return self.end
