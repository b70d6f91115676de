"""Indexes of decisions: an agent that runs beside others in a run numbers its decisions in a range of its own."""

from __future__ import annotations

import hashlib

# Decisions of a range of their own: 40 bits for the range, 20 for the decision.
_RANGED = 1 << 60
_PER_RANGE = 20


def first_index(space: str) -> int:
    """The first decision index of a branch. The root counts 0, 1, 2, …; parallel branches must not share a counter."""
    if not space:
        return 0
    number = int.from_bytes(hashlib.sha256(space.encode()).digest()[:5], "big")
    return _RANGED | number << _PER_RANGE
