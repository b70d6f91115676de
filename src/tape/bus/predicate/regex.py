"""Regular expressions in time linear in the text: RE2's syntax and engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import cast

import re2  # type: ignore[import-untyped]  # google-re2 ships no types

from tape.bus.predicate.values import Fault

# What one pattern may take: patterns can come from payloads, and this many times the cache is bounded.
_MEMORY = 4 << 20
# Beyond this size a pattern's automaton may not fit into the memory that RE2's sets take.
_SMALL_PROGRAM = 2_000


@lru_cache(maxsize=128)
def searcher(pattern: str) -> Callable[[str], object]:
    """A function whose result is true if the pattern is found anywhere in a text."""
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _MEMORY
    try:
        program = re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0] if error.args else "invalid"
        shown = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise Fault(f"{pattern[:40]!r} is no regular expression of RE2: {shown}") from None
    if program.programsize > _SMALL_PROGRAM:
        return cast(Callable[[str], object], program.search)
    # A set of one says whether it matches without making a match object: six times as fast.
    one = re2.Set.SearchSet(options)
    one.Add(pattern)
    one.Compile()
    return cast(Callable[[str], object], one.Match)


def matches(text: str, pattern: str) -> bool:
    """Whether the pattern is found anywhere in the text."""
    try:
        return bool(searcher(pattern)(text))
    except UnicodeEncodeError:
        raise Fault("the string has a lone surrogate, which is not Unicode text") from None
