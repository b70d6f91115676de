"""Regular expressions in time linear in the text: RE2's syntax and engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import msgspec
import re2  # type: ignore[import-untyped]  # google-re2 ships no types

from tape.cel.values import Fault

# What one pattern may take: patterns can come from payloads, and this many times the cache is bounded.
_MEMORY = 4 << 20
# Beyond this size a pattern's automaton may not fit into the memory that RE2's sets take.
_SMALL_PROGRAM = 2_000
# Steps: compiling a pattern takes about as long as 1,000 steps; one that RE2 rejects as too large takes longer.
_COST = 1_000
_COST_OF_FAILURE = 20_000


class CompiledRegex(msgspec.Struct, frozen=True):
    """A compiled pattern, or the reason why it is none; `cost` is what compiling it takes in steps."""

    search: Callable[[str], object] | None
    reason: str
    cost: int

    def is_found_in(self, text: str) -> bool:
        """Whether the pattern matches anywhere in the text."""
        if self.search is None:
            raise Fault(self.reason)
        try:
            return bool(self.search(text))
        except UnicodeEncodeError:
            raise Fault("the string has a lone surrogate, which is not Unicode text") from None


@lru_cache(maxsize=128)
def compile_pattern(text: str) -> CompiledRegex:
    """The pattern of a text. Mistakes are kept too, so that they are not made again and again."""
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _MEMORY
    try:
        program = re2.compile(text, options)
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0] if error.args else "invalid"
        shown = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        return CompiledRegex(None, f"{text[:40]!r} is no regular expression of RE2: {shown}", _COST_OF_FAILURE)
    cost = _COST + program.programsize
    if program.programsize > _SMALL_PROGRAM:
        return CompiledRegex(program.search, "", cost)
    # A set of one says whether it matches without making a match object: six times as fast.
    one = re2.Set.SearchSet(options)
    one.Add(text)
    one.Compile()
    return CompiledRegex(one.Match, "", cost)


def matches(text: str, pattern: str) -> bool:
    """Whether the pattern is found anywhere in the text."""
    return compile_pattern(pattern).is_found_in(text)
