"""A faster decoder of JSON for long files, where there is one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

Decode = Callable[[bytes], Any]


@cache
def fast_decoder() -> Decode | None:
    """The decoder of msgspec, or None where msgspec is not installed: the session tape does not need it.

    It accepts less than `json` does (no NaN, no infinities, no half of a surrogate pair) and decodes what it accepts
    to the same values: what it rejects is for `json` to decide. It is imported only when this is called, because the
    import takes as long as decoding ten thousand entries.
    """
    try:
        from msgspec.json import Decoder
    except ImportError:
        return None
    return Decoder().decode
