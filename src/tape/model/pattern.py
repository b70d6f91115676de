"""Subject patterns: `*` is exactly one segment, `**` at the end is zero or more.

Both sides are compared without their percent-encoding, so that a client that encodes more
than it has to still matches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from tape.errors import InvalidPattern, InvalidSubject
from tape.model.subject import ROOT, encode, unescape

T = TypeVar("T")


class Wildcard:
    """A segment of a pattern that is not text: a key that is itself `*` must not be taken for one."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


ONE = Wildcard("*")
REST = Wildcard("**")
_WILDCARDS = {wildcard.text: wildcard for wildcard in (ONE, REST)}
Segments = tuple["str | Wildcard", ...]
# Every subject has the root and a kind.
MIN_SEGMENTS = 2


class Pattern:
    """A compiled pattern. The empty text, `**` and `/**` match every subject.

    `prefix` is the beginning that every matching subject shares, spelt as the journal spells it.
    """

    __slots__ = ("_beginning", "_literal", "prefix", "segments", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.segments = _compile(text)
        self.prefix, rest = "", self.segments
        while rest and isinstance(segment := rest[0], str) and segment != "_":  # `_` has two spellings in the journal
            self.prefix += f"/{encode(segment)}"
            rest = rest[1:]
        # A pattern without wildcards is compared as one string, one whose only wildcard is `**` by its beginning.
        self._literal = self.prefix if not rest else None
        self._beginning = f"{self.prefix}/" if rest == (REST,) else None

    @property
    def is_literal(self) -> bool:
        """Whether the pattern names exactly one subject."""
        return self._literal is not None

    @property
    def matches_everything(self) -> bool:
        """Whether no subject is left out."""
        return self.segments in ((REST,), (ROOT, REST))

    def matches(self, subject: str) -> bool:
        """Whether a subject fits the pattern."""
        if self._beginning is not None and subject.startswith(self._beginning):
            return True
        return self._literal == subject or self.matches_segments(split(subject))

    def matches_segments(self, segments: Sequence[str | Wildcard]) -> bool:
        """Whether the segments of a subject fit. A wildcard among them is a text that only a wildcard fits."""
        for position, wanted in enumerate(self.segments):
            if wanted is REST:
                return True
            if position == len(segments) or (wanted is not ONE and wanted != segments[position]):
                return False
        return len(segments) == len(self.segments)

    def covers(self, other: Pattern) -> bool:
        """Whether every subject that fits the other pattern fits this one."""
        return all(map(self.matches_segments, other.representatives(len(self.segments))))

    def overlaps(self, other: Pattern) -> bool:
        """Whether a subject fits both patterns."""
        for mine, theirs in zip(self.segments, other.segments, strict=False):
            if mine is REST or theirs is REST:
                return True
            if mine is not ONE and theirs is not ONE and mine != theirs:
                return False
        shorter, longer = sorted((self.segments, other.segments), key=len)
        return len(shorter) == len(longer) or longer[len(shorter)] is REST

    def representatives(self, depth: int) -> Iterator[Segments]:
        """Segments of a few subjects that stand for all that fit this pattern.

        A pattern of up to `depth` segments fits all subjects of this one if it fits all of these. Where any text may
        stand they have a wildcard: no text of another pattern is equal to it.
        """
        fixed = tuple(segment for segment in self.segments if segment is not REST)
        if fixed and fixed[0] is ONE:
            fixed = (ROOT, *fixed[1:])
        elif not fixed:
            fixed = (ROOT,)
        if fixed[0] != ROOT:
            return  # every subject begins with /tape
        longest = max(depth + 1 - len(fixed), 1) if self.segments[-1] is REST else 0
        for count in range(longest + 1):
            if len(fixed) + count >= MIN_SEGMENTS:
                yield (*fixed, *(ONE,) * count)

    def __repr__(self) -> str:
        return f"Pattern({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pattern) and other.segments == self.segments

    def __hash__(self) -> int:
        return hash(self.segments)


def split(subject: str) -> list[str]:
    """The segments of a subject as patterns compare them."""
    segments = subject.split("/")
    del segments[0]  # what stands before the first slash
    return list(map(unescape, segments)) if "%" in subject else segments


def _compile(text: str) -> Segments:
    if text in ("", REST.text):
        return (REST,)
    if not text.startswith("/"):
        raise InvalidPattern(f"The pattern {text!r} must begin with '/', for example /tape/effect/**.")
    segments = text.split("/")[1:]
    for position, segment in enumerate(segments, start=1):
        if segment == REST.text and position < len(segments):
            raise InvalidPattern(
                f"The pattern {text!r} has ** as segment {position} of {len(segments)}; ** may only stand at the end."
                " Use * for exactly one segment."
            )
        if not segment:
            raise InvalidPattern(f"The pattern {text!r} has an empty segment at position {position}.")
        if "*" in segment and segment not in _WILDCARDS:
            raise InvalidPattern(
                f"The pattern {text!r} has {segment!r} as segment {position}; a wildcard stands for a whole segment."
                " A literal * is written %2A."
            )
    try:
        return tuple(_WILDCARDS.get(segment) or unescape(segment) for segment in segments)
    except InvalidSubject as error:
        raise InvalidPattern(f"The pattern {text!r}: {error}") from error


EVERY_SUBJECT = Pattern("")


class _Node(Generic[T]):
    __slots__ = ("children", "ends", "one", "rest")

    def __init__(self) -> None:
        self.children: dict[str, _Node[T]] = {}
        self.one: _Node[T] | None = None
        self.ends: dict[T, None] = {}
        self.rest: dict[T, None] = {}

    @property
    def is_empty(self) -> bool:
        return not (self.children or self.one or self.ends or self.rest)


class PatternSet(Generic[T]):
    """Many patterns, each standing for something; one walk finds all that match a subject.

    A trie over segments: the cost of a walk depends on the subject and on how many patterns match
    it, not on how many there are.
    """

    def __init__(self, items: Iterable[tuple[Pattern, T]] = ()) -> None:
        self._root: _Node[T] = _Node()
        self._size = 0
        for pattern, value in items:
            self.add(pattern, value)

    def __len__(self) -> int:
        return self._size

    def add(self, pattern: Pattern, value: T) -> None:
        """Let `value` stand for `pattern`; the same value may stand for several."""
        node = self._root
        for segment in pattern.segments:
            if segment is REST:
                break
            if isinstance(segment, Wildcard):
                node.one = node.one or _Node()
                node = node.one
            else:
                node = node.children.setdefault(segment, _Node())
        bucket = node.rest if pattern.segments[-1] is REST else node.ends
        self._size += value not in bucket
        bucket[value] = None

    def discard(self, pattern: Pattern, value: T) -> None:
        """Undo `add`, and remove empty nodes."""
        path: list[tuple[_Node[T], str | Wildcard]] = []
        node = self._root
        for segment in pattern.segments:
            if segment is REST:
                break
            following = node.one if isinstance(segment, Wildcard) else node.children.get(segment)
            if following is None:
                return
            path.append((node, segment))
            node = following
        bucket = node.rest if pattern.segments[-1] is REST else node.ends
        if value not in bucket:
            return
        del bucket[value]
        self._size -= 1
        for parent, segment in reversed(path):
            if not node.is_empty:
                break
            if isinstance(segment, Wildcard):
                parent.one = None
            else:
                del parent.children[segment]
            node = parent

    def matching(self, subject: str) -> list[T]:
        """Everything that stands for a pattern that the subject fits."""
        found = list(self._root.rest)
        nodes = [self._root]
        for segment in split(subject):
            following = []
            for node in nodes:
                child = node.children.get(segment)
                if child is not None:
                    following.append(child)
                    if child.rest:
                        found += child.rest
                child = node.one
                if child is not None:
                    following.append(child)
                    if child.rest:
                        found += child.rest
            if not following:
                return found
            nodes = following
        for node in nodes:
            if node.ends:
                found += node.ends
        return found
