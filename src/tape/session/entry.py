"""Entries of a tape: a dict with a seq, and a typed view of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NewType

from tape.errors import InvalidEvent

Cursor = NewType("Cursor", int)
"""The seq from which a reader continues."""


class Recorded(dict[str, Any]):
    """A copy of an entry that also stands for its seq: `int(entry)`, `entry == 3`, `entry < 7`. `record()` returns it.

    It holds the values that were recorded; the entry on the tape holds copies of them, and is a plain dict that all
    readers share: take a copy before changing it.
    """

    __slots__ = ()

    def __int__(self) -> int:
        return self["seq"]  # type: ignore[no-any-return]

    __index__ = __int__

    def __eq__(self, other: object) -> bool:
        return self["seq"] == other if isinstance(other, int) else dict.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: Any) -> bool:
        return self["seq"] < int(other)  # type: ignore[no-any-return]

    def __le__(self, other: Any) -> bool:
        return self["seq"] <= int(other)  # type: ignore[no-any-return]

    def __gt__(self, other: Any) -> bool:
        return self["seq"] > int(other)  # type: ignore[no-any-return]

    def __ge__(self, other: Any) -> bool:
        return self["seq"] >= int(other)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class EventRecord:
    """A typed view of an entry: the envelope as attributes, everything else in `payload`."""

    seq: int
    t: float
    kind: str
    type: str
    payload: dict[str, Any]

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> EventRecord:
        """The view of an entry; what it lacks is -1, 0.0 or empty."""
        payload = {key: value for key, value in entry.items() if key not in ("seq", "t", "kind", "type")}
        return cls(entry.get("seq", -1), entry.get("t", 0.0), entry.get("kind", ""), entry.get("type", ""), payload)

    def to_dict(self) -> dict[str, Any]:
        """The entry again."""
        return {"seq": self.seq, "t": self.t, "kind": self.kind, "type": self.type, **self.payload}


SCALARS = frozenset({str, int, float, bool, type(None), bytes, complex})
"""The types of values that cannot change."""
MAX_DEPTH = 50


def own(value: Any, depth: int = 0) -> Any:
    """A copy of a value that the caller cannot change any more; what cannot be copied becomes its repr."""
    kind = type(value)
    if kind in SCALARS:
        return value
    if depth < MAX_DEPTH:  # deeper ones, and those that contain themselves, are left to deepcopy
        depth += 1  # scalars are looked at here, because a call of own() takes longer
        if kind is dict:
            return {key: each if type(each) in SCALARS else own(each, depth) for key, each in value.items()}
        if kind is list:
            return [each if type(each) in SCALARS else own(each, depth) for each in value]
        if kind is tuple:
            return tuple([each if type(each) in SCALARS else own(each, depth) for each in value])
    from copy import deepcopy  # most events have nothing that needs it

    try:
        return deepcopy(value)
    except Exception:  # a lock, a connection, a generator, a value that is nested too deeply
        return _repr(value)


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception:
        return object.__repr__(value)


def check_keys(event: Mapping[Any, Any]) -> None:
    """Raise unless every key is text."""
    for key in event:
        if not isinstance(key, str):
            raise InvalidEvent(f"The event has the key {key!r} of type {type(key).__name__}; keys must be text.")
