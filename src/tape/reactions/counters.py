"""Counters of a dispatcher."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

WINDOW_S = 5.0


@dataclass
class Tally:
    """Counts over all reactions of one dispatcher.

    `failed` counts failed attempts, `dead` those of them that made a dead letter, `lost` tasks whose lease expired,
    `released` tasks released before they began.
    """

    in_flight: int = 0
    done: int = 0
    failed: int = 0
    dead: int = 0
    lost: int = 0
    released: int = 0
    stuck: int = 0
    reconnects: int = 0
    is_polling: bool = False
    _recent: deque[tuple[float, int]] = field(default_factory=deque, repr=False)

    @property
    def rate(self) -> float:
        """Tasks done per second, over the last 5 seconds; call it about once a second."""
        now = time.monotonic()
        self._recent.append((now, self.done))
        while len(self._recent) > 2 and now - self._recent[0][0] > WINDOW_S:
            self._recent.popleft()
        (since, before), span = self._recent[0], now - self._recent[0][0]
        return (self.done - before) / span if span > 0 and since < now else 0.0
