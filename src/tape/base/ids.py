"""Random and time-ordered ids."""

from __future__ import annotations

import random
import secrets
import uuid


def new_id() -> str:
    """Return a random UUID (version 4)."""
    return str(uuid.uuid4())


def new_time_ordered_id(at_ms: int) -> str:
    """Return a UUID (version 7) that sorts by `at_ms`, so that rows of one moment are neighbours in an index."""
    noise = random.getrandbits(74)
    text = f"{at_ms << 80 | 0x7 << 76 | noise >> 62 << 64 | 0b10 << 62 | noise & ((1 << 62) - 1):032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def new_suffix() -> str:
    """Return 8 random hexadecimal digits, which make a name unique.

    They come from the operating system: processes that seed `random` alike still get different ones.
    """
    return secrets.token_hex(4)
