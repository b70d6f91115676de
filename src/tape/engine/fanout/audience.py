"""Audiences: live subscribers with the same scope share encoded frames, so one more costs one write per wake-up."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from tape.journal.reader import EntryIdentity
from tape.model.entry import Entry
from tape.model.grants import Grants

if TYPE_CHECKING:
    from tape.engine.fanout.live import LiveSubscription


class LiveScope(msgspec.Struct, frozen=True):
    """What a live subscription sees. Without an identity: entries of all identities."""

    identity: EntryIdentity | None
    run: str = ""
    types: frozenset[str] = frozenset()
    # Only entries of these subjects; None is every subject.
    grants: Grants | None = None
    # Only entries of these subjects, of those that are granted; None is every subject.
    subjects: Grants | None = None
    # Whether frames have the type as their name.
    is_named: bool = True

    def matches(self, entry: Entry) -> bool:
        """Whether the scope includes an entry."""
        return (self.identity is None or self.identity.matches(entry)) and self.matches_beyond_identity(entry)

    @property
    def triples(self) -> Sequence[tuple[str, str, str] | None]:
        """Tenant, user and session of the entries in the scope; None alone is all of them."""
        return [None] if self.identity is None else self.identity.triples

    def matches_beyond_identity(self, entry: Entry) -> bool:
        """Whether an entry of the scope's identity has the scope's run and type and is granted."""
        return (
            (not self.run or entry.run_id == self.run)
            and (not self.types or self.has_type(entry.type))
            and (self.grants is None or self.grants.matches(entry.subject))
            and (self.subjects is None or self.subjects.matches(entry.subject))
        )

    def has_type(self, type_: str) -> bool:
        """Whether entries of a type may be included."""
        return not self.types or type_ in self.types or any(_matches(each, type_) for each in self.type_patterns)

    @property
    def type_patterns(self) -> tuple[str, ...]:
        """The types that have a `*`, which stands for any text."""
        return _patterns_of(self.types)

    @property
    def is_identity_only(self) -> bool:
        """Whether every entry of the identity is included."""
        return not self.run and not self.types and self.grants is None and self.subjects is None


@lru_cache(maxsize=1024)
def _patterns_of(types: frozenset[str]) -> tuple[str, ...]:
    return tuple(sorted(each for each in types if "*" in each))


@lru_cache(maxsize=16384)
def _matches(pattern: str, type_: str) -> bool:
    """Whether a type has the texts between the `*` of a pattern in their order. Linear, whatever the caller sends."""
    first, *parts = pattern.split("*")
    last = parts.pop()
    if not type_.startswith(first) or len(type_) < len(first) + len(last) or not type_.endswith(last):
        return False
    at, end = len(first), len(type_) - len(last)
    for part in parts:
        if (found := type_.find(part, at, end)) < 0:
            return False
        at = found + len(part)
    return True


class Audience:
    """Subscribers with one scope, and the frames that at least one of them has not received yet.

    Frames are numbered from 0: `start` is the number of the oldest frame kept, `end` the number of the next one.
    `ready` members have received every frame before `_flushed`.
    """

    def __init__(self, scope: LiveScope, capacity: int, join: Callable[[Sequence[bytes]], bytes]) -> None:
        self.scope = scope
        self.has_no_filter = scope.is_identity_only
        self.is_named = scope.is_named
        self.members: dict[LiveSubscription, None] = {}
        self.ready: dict[LiveSubscription, None] = {}
        self.start = self.end = self._flushed = 0
        self._capacity = capacity
        self._join = join
        self._frames: deque[bytes] = deque()
        self._ids: deque[int] = deque()
        # The ids of frames that were dropped since the blocked members were last checked.
        self._dropped_ids: deque[int] = deque()
        self._is_due = False
        self.last_id = 0

    def append(self, id_: int, frame: bytes) -> None:
        """Keep a frame for all members and send it within this iteration of the event loop."""
        if self.end - self.start >= self._capacity:
            if self._flushed <= self.start:
                self.flush()  # a burst must not drop frames for members that keep up
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
        """Write all frames to the ready members; bytes that several members get are joined once."""
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
        """Write all frames to a member whose outlet has resumed."""
        begin = self._after(member.index, member.after) if member.after else member.index
        member.index = self.end
        if begin < self.end:
            member.after = 0
            member.outlet.write(self.frames_from(begin))

    def frames_from(self, index: int) -> bytes:
        """The frames from a number on, joined."""
        return self._join(list(islice(self._frames, index - self.start, None)))

    def dropped_before(self, index: int) -> tuple[int, int, int] | None:
        """The first id, the last id and the number of dropped frames from `index` on; None if there are none."""
        count = self.start - index
        if count <= 0:
            return None
        return self._dropped_ids[-count], self._dropped_ids[-1], count

    def clear_dropped(self) -> None:
        """Forget the ids of dropped frames: all blocked members have counted them."""
        self._dropped_ids.clear()

    def _flush_when_due(self) -> None:
        self._is_due = False
        self.flush()

    def _after(self, index: int, id_: int) -> int:
        """The number of the first frame whose id is greater than the given one."""
        for offset in range(max(index - self.start, 0), len(self._ids)):
            if self._ids[offset] > id_:
                return self.start + offset
        return self.end
