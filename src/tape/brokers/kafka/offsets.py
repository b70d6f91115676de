"""Settled offsets of a partition: records are settled one by one, Kafka stores one committed offset."""

from __future__ import annotations

from collections import Counter


class Offsets:
    """The delivered and settled offsets of one partition, and the offset that may be committed.

    A commit covers every record before it, so it ends before the first unsettled record. When a record is redelivered,
    the later ones are redelivered too; settled ones are skipped.
    """

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._done: set[int] = set()
        self._owed: set[int] = set()
        self._deliveries: Counter[int] = Counter()
        self._next = -1
        self._committed = -1

    def hand_out(self, offset: int) -> int:
        """Record a delivery; the number of deliveries of the record, or 0 if it is settled."""
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
        """Settle a record."""
        if offset in self._open:
            self._open.discard(offset)
            self._owed.discard(offset)
            self._done.add(offset)

    def go_back(self, offset: int) -> int:
        """Redeliver a record and the unsettled ones after it; the offset to seek to."""
        self._owed.update(each for each in self._open if each >= offset)
        return min(self._owed, default=offset)

    def is_owed(self, offset: int) -> bool:
        """Whether a delivered record will be redelivered, because an earlier one is."""
        return offset in self._owed

    def position(self) -> int | None:
        """The oldest unsettled offset, if it is after the committed one."""
        position = min(self._open, default=self._next)
        return position if position > self._committed else None

    def committed(self, position: int) -> None:
        """Everything before a position is committed: forget it."""
        self._committed = position
        self._done = {offset for offset in self._done if offset >= position}
        for offset in [offset for offset in self._deliveries if offset < position]:
            del self._deliveries[offset]
