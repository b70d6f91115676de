"""Which records of a partition are done: Kafka keeps one number, we settle one by one."""

from __future__ import annotations

from collections import Counter


class Offsets:
    """One partition: what was handed out, what of it is done, and how far that may be committed.

    A commit says "everything before this", so it goes only as far as no record is left open. When a record is
    delivered again, those behind it come again as well; the ones that are done already are passed over.
    """

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._done: set[int] = set()
        self._owed: set[int] = set()
        self._deliveries: Counter[int] = Counter()
        self._next = -1
        self._committed = -1

    def hand_out(self, offset: int) -> int:
        """Note that a record is handed out; how often it was by now, or 0 if it is done already."""
        if self._next < 0:
            self._committed = offset
        self._next = max(self._next, offset + 1)
        if offset in self._done or offset < self._committed:
            return 0
        self._open.add(offset)
        self._owed.discard(offset)
        self._deliveries[offset] += 1
        return self._deliveries[offset]

    def settle(self, offset: int) -> None:
        """A record is done."""
        if offset in self._open:
            self._open.discard(offset)
            self._owed.discard(offset)
            self._done.add(offset)

    def go_back(self, offset: int) -> int:
        """A record is to come again, and with it what was handed out behind it. Where to read on: at the oldest."""
        self._owed.update(each for each in self._open if each >= offset)
        return min(self._owed, default=offset)

    def is_owed(self, offset: int) -> bool:
        """Whether a record that was handed out will come again, because one before it does."""
        return offset in self._owed

    def position(self) -> int | None:
        """The oldest record that is not done, if that is further than what was committed."""
        position = min(self._open, default=self._next)
        return position if position > self._committed else None

    def committed(self, position: int) -> None:
        """Everything before a position is committed and can be forgotten."""
        self._committed = position
        self._done = {offset for offset in self._done if offset >= position}
        for offset in [offset for offset in self._deliveries if offset < position]:
            del self._deliveries[offset]
