"""Entries of a tape: a dict with a seq, a typed view of it, and the conversion of events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NewType

from tape.errors import InvalidEvent

Cursor = NewType("Cursor", int)
"""The seq from which a reader continues."""

ENVELOPE = ("seq", "t", "type")


class Recorded(dict[str, Any]):
    """A recorded entry. It is a dict, and also stands for its seq: `int(entry)`, `entry == 3`, `entry < 7`.

    All readers of a tape share it: take a copy before changing it.
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


Build = Callable[[Any, int, float], Recorded]


def builder_of(event: Any) -> Build:
    """How events of this one's class become entries; made once per class."""
    cls = type(event)
    if issubclass(cls, Mapping):
        return _from_mapping
    fields = getattr(cls, "__dataclass_fields__", None)
    if fields is None:
        raise InvalidEvent(
            f"record() takes a dict or an event dataclass, not {cls.__name__}: {event!r:.80}."
            ' For a dict, write {"kind": "…", …}.'
        )
    if clash := [name for name in ENVELOPE if name in fields]:
        raise InvalidEvent(
            f"{cls.__name__} has a field {clash[0]!r}, which every entry already has for itself. Rename the field."
        )
    if "kind" not in fields:
        raise InvalidEvent(f"{cls.__name__} has no field 'kind'. Derive it from HarnessEvent, or add one.")
    names = [name for name in fields if name != "kind"]
    lines = [f"entry[{name!r}] = event.{name}" for name in ("kind", *names)]
    lines.insert(1, f"entry['type'] = {cls.__name__!r}")
    body = "\n    ".join(["entry = Recorded()", "entry['seq'] = seq", "entry['t'] = t", *lines, "return entry"])
    # Written out per class, as dataclasses write their __init__: half the time of a loop over the fields.
    space: dict[str, Any] = {"Recorded": Recorded}
    exec(f"def build(event, seq, t):\n    {body}", space)  # noqa: S102
    return space["build"]  # type: ignore[no-any-return]


def _from_mapping(event: Mapping[str, Any], seq: int, t: float) -> Recorded:
    kind = event.get("kind")
    if not isinstance(kind, str) or not kind:
        raise InvalidEvent(f'The event has kind {kind!r}; give it one that is text: {{"kind": "text", …}}.')
    for name in ("seq", "t"):
        if name in event:
            raise InvalidEvent(
                f"The event already has {name} {event[name]!r}; record() gives every entry its own."
                " Leave it out, or use record_dict() to keep it."
            )
    check_keys(event)
    entry = Recorded(seq=seq, t=t)
    entry.update(event)
    return entry


def check_keys(event: Mapping[Any, Any]) -> None:
    """Raise unless every key is text."""
    for key in event:
        if not isinstance(key, str):
            raise InvalidEvent(f"The event has the key {key!r} of type {type(key).__name__}; keys must be text.")
