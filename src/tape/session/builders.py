"""How an event becomes an entry, and the line of that entry: a function for each class of events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tape.errors import InvalidEvent
from tape.session.entry import SCALARS, check_keys, own
from tape.session.lines import encode, quote

Build = Callable[[Any, int, float], tuple[dict[str, Any], bytes | None, dict[str, Any]]]
"""Makes an entry, its line, and the entry with the caller's own values from an event, a seq and a time.

Values that can change are copied into the first; without any, both are one. Without a line, `to_line(entry)` is it.
"""

ENVELOPE = ("seq", "t", "type")
# The JSON of a value. `encode` takes the rest and raises where a value needs more than JSON has.
_VALUE = (
    "quote({0}) if (cls := type({0})) is str"
    " else repr({0}) if cls is int or cls is float and {0} - {0} == 0"  # NaN and infinities are not equal to 0
    " else encode({0})"
)


class Builders:
    """The functions of all classes of events that occurred, with or without lines."""

    def __init__(self, *, with_lines: bool) -> None:
        self._with_lines = with_lines
        self._known: dict[type, Build] = {}
        self.get = self._known.get

    def learn(self, event: Any) -> Build:
        """Make the function for events of this one's class."""
        build = self._known[type(event)] = _builder_of(event, self._with_lines)
        return build


ENTRIES = Builders(with_lines=False)
ENTRIES_AND_LINES = Builders(with_lines=True)


def _builder_of(event: Any, with_line: bool) -> Build:
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
    names = ["kind", *(name for name in fields if name != "kind")]
    # Written out per class, as dataclasses write their __init__: half the time of a loop over the fields.
    space: dict[str, Any] = {"encode": encode, "quote": quote, "own": own, "scalars": SCALARS}
    exec(_source(cls.__name__, names, with_line), space)  # noqa: S102
    return space["build"]  # type: ignore[no-any-return]


def _source(type_name: str, names: list[str], with_line: bool) -> str:
    values = [f"value{number}" for number in range(len(names))]
    loads = [f"{value} = event.{name}" for name, value in zip(names, values, strict=True)]
    items = [f"{name!r}: {value}" for name, value in zip(names, values, strict=True)]
    items.insert(1, f"'type': {type_name!r}")
    entry = f"entry = {{'seq': seq, 't': t, {', '.join(items)}}}"
    are_scalars = " and ".join(f"type({value}) in scalars" for value in values)
    copies = [
        f"{name!r}: {value} if type({value}) in scalars else own({value})"
        for name, value in zip(names, values, strict=True)
    ]
    copies.insert(1, f"'type': {type_name!r}")
    owned = [f"kept = entry if {are_scalars} else {{'seq': seq, 't': t, {', '.join(copies)}}}"]
    if not with_line:
        return _function([*loads, entry, *owned, "return kept, None, entry"])
    texts = [
        f"{f', {quote(name)}: '!r} f'{{{_VALUE.format(value)}}}'" for name, value in zip(names, values, strict=True)
    ]
    texts.insert(1, repr(f', "type": {quote(type_name)}'))
    line = f"""('{{"seq": ' f'{{seq}}' ', "t": ' f'{{t!r}}' {" ".join(texts)} '}}\\n').encode('ascii')"""
    return _function(
        [
            *loads,
            entry,
            "try:",
            f"    line = {line}",
            "except Exception:",  # to_line(entry) finds a way, or raises where errors of the backend are handled
            "    line = None",
            *owned,
            "return kept, line, entry",
        ]
    )


def _function(body: list[str]) -> str:
    return "def build(event, seq, t):\n    " + "\n    ".join(body)


def _from_mapping(event: Mapping[str, Any], seq: int, t: float) -> tuple[dict[str, Any], None, dict[str, Any]]:
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
    entry = {"seq": seq, "t": t, **event}
    return entry if SCALARS.issuperset(map(type, event.values())) else own(entry), None, entry
