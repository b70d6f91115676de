"""CEL's strings extension. Positions count code points."""

from __future__ import annotations

from typing import Any

from tape.cel.limits import LIMITS
from tape.cel.values import Exhausted, Fault, described

# Unicode's White_Space; Python's own strip also takes the separators U+001C to U+001F.
_SPACE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_UPPER = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}
_QUOTED = str.maketrans(
    {
        "\a": "\\a",
        "\b": "\\b",
        "\f": "\\f",
        "\n": "\\n",
        "\r": "\\r",
        "\t": "\\t",
        "\v": "\\v",
        "\\": "\\\\",
        '"': '\\"',
    }
)


def check_size(size: int) -> None:
    """Raise if a value of so many characters or elements may not be made."""
    if size > LIMITS.size:
        raise Exhausted(f"a value of {size} characters or elements; {LIMITS.size} are allowed")


def char_at(text: str, position: int) -> str:
    """The character at a position; nothing just behind the last."""
    if not 0 <= position <= len(text):
        raise Fault(f"position {position} is outside of a string of {len(text)} characters")
    return text[position : position + 1]


def index_of(text: str, wanted: str, start: int = 0) -> int:
    """Where a text is found first, or -1."""
    if not 0 <= start <= len(text):
        raise Fault(f"position {start} is outside of a string of {len(text)} characters")
    return text.find(wanted, start)


def last_index_of(text: str, wanted: str) -> int:
    """Where a text is found last, or -1."""
    return text.rfind(wanted)


def last_index_of_from(text: str, wanted: str, start: int) -> int:
    """Where a text is found last that begins at `start` or before, or -1."""
    if not 0 <= start <= len(text):
        raise Fault(f"position {start} is outside of a string of {len(text)} characters")
    return text.rfind(wanted, 0, start + len(wanted))


def join(parts: list[Any], separator: str = "") -> str:
    """Strings, one after the other."""
    for part in parts:
        if type(part) is not str:
            raise Fault(f"join() takes a list of strings; it has {described(part)}")
    check_size(sum(map(len, parts)) + len(separator) * len(parts))
    return separator.join(parts)


def lower_ascii(text: str) -> str:
    """With a to z for A to Z."""
    return text.translate(_LOWER)


def upper_ascii(text: str) -> str:
    """With A to Z for a to z."""
    return text.translate(_UPPER)


def replace(text: str, old: str, new: str, limit: int = -1) -> str:
    """With `new` for every `old`, or for the first so many."""
    count = text.count(old) if limit < 0 else min(text.count(old), limit)
    check_size(len(text) + count * (len(new) - len(old)))
    return text.replace(old, new, count)


def split(text: str, separator: str, limit: int = -1) -> list[str]:
    """The parts between separators, at most so many; without a separator, the characters."""
    if limit == 0:
        return []
    if separator:
        return text.split(separator, limit - 1 if limit > 0 else -1)
    if limit < 0 or limit >= len(text):
        return list(text) or [""]
    return [*text[: limit - 1], text[limit - 1 :]]


def substring(text: str, start: int) -> str:
    """From a position to the end."""
    return substring_between(text, start, len(text))


def substring_between(text: str, start: int, end: int) -> str:
    """From a position to just before another."""
    if not 0 <= start <= end <= len(text):
        raise Fault(f"{start} to {end} is no part of a string of {len(text)} characters")
    return text[start:end]


def trim(text: str) -> str:
    """Without the white space at both ends."""
    return text.strip(_SPACE)


def reverse(text: str) -> str:
    """Its characters from last to first."""
    return text[::-1]


def quote(text: str) -> str:
    """The text as a literal of CEL."""
    return f'"{text.translate(_QUOTED)}"'


def concatenate(left: Any, right: Any) -> Any:
    """Two strings, bytes or lists, one after the other."""
    check_size(len(left) + len(right))
    return left + right
