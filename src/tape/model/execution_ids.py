"""Execution ids: whole numbers of 63 bits that grow with time, so that they sort by when they were made.

The upper bits are milliseconds since 2024, then ten bits for the process, then a counter.
"""

from __future__ import annotations

import secrets
import threading

from tape.base.clock import now_ms

EPOCH_MS = 1_704_067_200_000  # 2024-01-01T00:00:00Z
MACHINE_BITS = 10
COUNTER_BITS = 12
MAX_ID = (1 << 63) - 1


class Identifiers:
    """Makes ids that are larger each time, also when the clock goes back. Safe to share between threads."""

    def __init__(self, machine: int | None = None) -> None:
        # Two processes may draw the same number: the insert of an id checks that it is new.
        self._machine = (secrets.randbits(MACHINE_BITS) if machine is None else machine) << COUNTER_BITS
        self._last = 0  # milliseconds and counter, without the machine between them
        self._lock = threading.Lock()

    def make(self) -> int:
        """The next id."""
        now = (now_ms() - EPOCH_MS) << COUNTER_BITS
        with self._lock:
            # More than 4,096 within a millisecond are taken from the next one.
            self._last = max(now, self._last + 1)
            ms, counter = self._last >> COUNTER_BITS, self._last & ((1 << COUNTER_BITS) - 1)
        return ms << (MACHINE_BITS + COUNTER_BITS) | self._machine | counter


_identifiers = Identifiers()
new_id = _identifiers.make


def made_at_ms(execution_id: int) -> int:
    """When an id was made, in milliseconds since 1970."""
    return (execution_id >> (MACHINE_BITS + COUNTER_BITS)) + EPOCH_MS
