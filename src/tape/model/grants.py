"""Grants: the subject patterns that a token or key may read or write."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from tape.errors import InvalidPattern, SubjectNotGranted
from tape.model.pattern import Pattern, PatternSet
from tape.model.subject import ROOT

MAX_PATTERNS = 64
MAX_SEGMENTS = 64
# Error texts show so many patterns, and so much of each.
MAX_SHOWN = 8
MAX_SHOWN_CHARS = 100


class Grants:
    """Patterns, of which a subject must fit one. None of them: no subject is granted."""

    __slots__ = ("_depth", "_set", "patterns")

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        self.patterns = tuple(patterns)
        self._set = PatternSet((pattern, None) for pattern in self.patterns)
        self._depth = max((len(pattern.segments) for pattern in self.patterns), default=0)

    def matches(self, subject: str) -> bool:
        """Whether a subject is granted."""
        return bool(self._set.matching(subject))

    def covers(self, pattern: Pattern) -> bool:
        """Whether every subject that fits the pattern is granted, each by one of the patterns."""
        return all(
            any(granted.matches_segments(segments) for granted in self.patterns)
            for segments in pattern.representatives(self._depth)
        )

    def overlapping(self, pattern: Pattern) -> list[Pattern]:
        """The granted patterns that share a subject with the pattern."""
        return [granted for granted in self.patterns if granted.overlaps(pattern)]

    def narrow(self, pattern: Pattern) -> tuple[Pattern, Grants | None]:
        """A pattern, and grants beside it if it alone is not enough, that select what is granted of the given one.

        Raises SubjectNotGranted if that is nothing.
        """
        overlapping = self.overlapping(pattern)
        if not overlapping:
            raise SubjectNotGranted(f"the pattern {pattern.text or '**'!r} lies outside of the read grants, {self}.")
        if self.covers(pattern):
            return pattern, None
        if len(overlapping) == 1 and pattern.covers(overlapping[0]):
            return overlapping[0], None
        return pattern, Grants(overlapping)

    def __str__(self) -> str:
        shown = [(pattern.text or "**")[:MAX_SHOWN_CHARS] for pattern in self.patterns[:MAX_SHOWN]]
        more = len(self.patterns) - len(shown)
        return (", ".join(shown) + (f" and {more} more" if more else "")) or "which are empty"

    def __repr__(self) -> str:
        return f"Grants({[pattern.text for pattern in self.patterns]})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Grants) and other.patterns == self.patterns

    def __hash__(self) -> int:
        return hash(self.patterns)


@lru_cache(maxsize=4_096)
def compile_grants(texts: tuple[str, ...]) -> Grants:
    """The grants of pattern texts. Raises InvalidPattern, which names the limit or the bad pattern."""
    if len(texts) > MAX_PATTERNS:
        raise InvalidPattern(f"{len(texts)} patterns; {MAX_PATTERNS} is the limit.")
    grants = Grants(map(Pattern, texts))
    for pattern in grants.patterns:
        if isinstance(pattern.segments[0], str) and pattern.segments[0] != ROOT:
            raise InvalidPattern(f"The pattern {pattern.text[:60]!r} fits no subject: subjects begin with /{ROOT}/.")
        if len(pattern.segments) > MAX_SEGMENTS:
            raise InvalidPattern(
                f"The pattern {pattern.text[:60]!r}… has {len(pattern.segments)} segments; {MAX_SEGMENTS} is the limit."
            )
    return grants
