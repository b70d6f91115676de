"""Execution ids: whole numbers of 63 bits that grow with time, so that they sort by when they were made.

The upper bits are milliseconds since 2024, then ten bits for the process, then a counter. Ids whose counter has its
highest bit set are made in blocks: the runs that share one entry of the journal. The lower ten bits number them, so
that the id of a run gives the id of its block.
"""

from __future__ import annotations

import secrets
import threading

from tape.base.clock import now_ms

EPOCH_MS = 1_704_067_200_000  # 2024-01-01T00:00:00Z
MACHINE_BITS = 10
COUNTER_BITS = 12
# Ids of one block.
BLOCK_SIZE = 1 << 10
_IN_BLOCK = 1 << (COUNTER_BITS - 1)
_SINGLE_BITS = COUNTER_BITS - 1
_BLOCK_BITS = COUNTER_BITS - 1 - 10
MAX_ID = (1 << 63) - 1


class Identifiers:
    """Makes ids that are larger each time, also when the clock goes back. Safe to share between threads."""

    def __init__(self, machine: int | None = None) -> None:
        # Two processes may draw the same number: the insert of an id checks that it is new.
        self._machine = (secrets.randbits(MACHINE_BITS) if machine is None else machine) << COUNTER_BITS
        self._last = 0  # milliseconds and counter, without the machine between them
        self._last_block = 0  # the same for blocks
        self._lock = threading.Lock()

    def make(self) -> int:
        """The next id."""
        now = (now_ms() - EPOCH_MS) << _SINGLE_BITS
        with self._lock:
            # More than 2,048 within a millisecond are taken from the next one.
            self._last = max(now, self._last + 1)
            ms, counter = self._last >> _SINGLE_BITS, self._last & ((1 << _SINGLE_BITS) - 1)
        return ms << (MACHINE_BITS + COUNTER_BITS) | self._machine | counter

    def make_block(self) -> int:
        """The first of BLOCK_SIZE ids."""
        now = (now_ms() - EPOCH_MS) << _BLOCK_BITS
        with self._lock:
            self._last_block = max(now, self._last_block + 1)
            ms, block = self._last_block >> _BLOCK_BITS, self._last_block & ((1 << _BLOCK_BITS) - 1)
        return ms << (MACHINE_BITS + COUNTER_BITS) | self._machine | _IN_BLOCK | block * BLOCK_SIZE


_identifiers = Identifiers()
new_id = _identifiers.make
new_block = _identifiers.make_block


def split_id(execution_id: int) -> tuple[int, int] | None:
    """The block of an id and its number there; None if it was not made in a block."""
    if not execution_id & _IN_BLOCK:
        return None
    return execution_id & ~(BLOCK_SIZE - 1), execution_id & (BLOCK_SIZE - 1)


def made_at_ms(execution_id: int) -> int:
    """When an id was made, in milliseconds since 1970."""
    return (execution_id >> (MACHINE_BITS + COUNTER_BITS)) + EPOCH_MS
