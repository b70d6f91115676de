"""How much fits into a batch so that its work takes a given time, from how long earlier ones took."""

from __future__ import annotations

# At most this many times as much as the last time.
GROWTH = 2.0


class BatchSize:
    """The cost that a batch may have. It follows the measured time of batches that it has limited or that took long."""

    def __init__(self, seconds: float, *, first: int, least: int, most: int) -> None:
        self._seconds = seconds
        self._least = least
        self._most = most
        self.cost = min(max(first, least), most)

    def observe(self, operations: int, cost: int, seconds: float) -> None:
        """Take the time into account that the work of a batch took. One operation is never divided."""
        is_full = cost + self._least > self.cost
        if seconds > self._seconds and operations > 1:
            fitting = min(cost, self.cost) * self._seconds / seconds
        elif seconds < self._seconds and is_full:
            fitting = self.cost * min(self._seconds / max(seconds, 1e-6), GROWTH)
        else:
            return
        self.cost = min(max(int(fitting), self._least), self._most)
