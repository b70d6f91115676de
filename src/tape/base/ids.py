"""Random and time-ordered ids."""

from __future__ import annotations

import secrets
import uuid
from typing import Literal


def new_id() -> str:
    """Return a random UUID (version 4)."""
    return str(uuid.uuid4())


def new_time_ordered_id(at_ms: int, version: Literal[4, 7] = 7) -> str:
    """Return a UUID that sorts by `at_ms`, so that rows of one moment are neighbours in an index.

    One of version 4 is random but for its first 48 bits, which are the time: for ids that clients may expect to be of
    that version.
    """
    noise = secrets.randbits(74)
    text = f"{at_ms << 80 | version << 76 | noise >> 62 << 64 | 0b10 << 62 | noise & ((1 << 62) - 1):032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def new_suffix() -> str:
    """Return 8 random hexadecimal digits, which make a name unique.

    They come from the operating system: processes that seed `random` alike still get different ones.
    """
    return secrets.token_hex(4)
