"""What one predicate may cost, so that no text can hang a server."""

from __future__ import annotations

import msgspec


class PredicateLimits(msgspec.Struct, frozen=True):
    """Bounds on a text (checked when it is compiled) and on one evaluation of it.

    A step is one sub-expression inside a macro, one element that is compared, or 256 characters or
    elements that a function walks through or makes. A hundred thousand take less than a tenth of a second.
    """

    length: int = 16_384
    depth: int = 100
    nesting: int = 4
    steps: int = 100_000
    # Characters, bytes or elements in one value that an expression makes.
    size: int = 4 << 20


LIMITS = PredicateLimits()
# A step is two to this power of characters.
STEP_SIZE_BITS = 8
# Strings up to this length cost no steps of their own to test or compare.
LONG_STRING = 1_024
# To look at one element in the depths of a value takes as long as this many steps.
STEPS_PER_ELEMENT = 4
