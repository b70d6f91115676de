"""Code that reads: variables, fields, elements, and containers that are written out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tape.cel.entry_view import COMPUTED, EntryView, Run
from tape.cel.values import BoolKey, Fault, Uint, described, key_of, lookup_key


def variable(name: str) -> Run:
    """A field of the entry, or a variable that the entry view computes."""
    if name == "payload":
        return lambda view: view.payload
    if name == "prev_value_json":
        return lambda view: view.prev_value_json
    if name in COMPUTED:
        return lambda view: getattr(view, name)
    match name:
        case "kind":
            return lambda view: view.entry.kind
        case "subject":
            return lambda view: view.entry.subject
        case "ts_ms":
            return lambda view: view.entry.ts_ms
        case "global_seq":
            return lambda view: view.entry.global_seq
        case _:
            return lambda view: getattr(view.entry, name)


def local(slot: int) -> Run:
    """The element that a macro is at."""
    return lambda view: view.locals[slot]


def field(operand: Run, name: str, at: int) -> Run:
    """`operand.name`."""
    absent = _absence(name)

    def run(view: EntryView) -> Any:
        value = operand(view)
        try:
            return value[name]
        except KeyError:
            raise Fault(absent, at) from None
        except TypeError:
            raise _no_field(value, name, at) from None

    return run


def payload_field(name: str, at: int) -> Run:
    """`payload.name` in one step."""
    absent = _absence(name)

    def run(view: EntryView) -> Any:
        try:
            return view.payload[name]
        except KeyError:
            raise Fault(absent, at) from None
        except TypeError:
            raise _no_field(view.payload, name, at) from None

    return run


def payload_field_2(first: str, second: str, first_at: int, second_at: int) -> Run:
    """`payload.first.second` in one step."""
    first_absent, second_absent = _absence(first), _absence(second)

    def run(view: EntryView) -> Any:
        try:
            return view.payload[first][second]
        except (KeyError, TypeError):
            payload = view.payload
            if type(payload) is not dict:
                raise _no_field(payload, first, first_at) from None
            if first not in payload:
                raise Fault(first_absent, first_at) from None
            if type(payload[first]) is not dict:
                raise _no_field(payload[first], second, second_at) from None
            raise Fault(second_absent, second_at) from None

    return run


def _absence(name: str) -> str:
    return f"no such key: {name!r}"


def _no_field(value: Any, name: str, at: int) -> Fault:
    return Fault(f"{described(value)} has no field {name!r}", at)


def has_field(operand: Run, name: str, at: int) -> Run:
    """`has(operand.name)`."""

    def run(view: EntryView) -> bool:
        value = operand(view)
        if type(value) is dict:
            return name in value
        raise _no_field(value, name, at)

    return run


def element(operand: Run, index: Run, at: int) -> Run:
    """`operand[index]`."""

    def run(view: EntryView) -> Any:
        try:
            return element_of(operand(view), index(view))
        except Fault as fault:
            if fault.at < 0:
                fault.at = at
            raise

    return run


def element_of(container: Any, index: Any) -> Any:
    """The value of a key or at a position."""
    if type(container) is dict:
        key = lookup_key(index)
        try:
            return container[key]
        except KeyError:
            shown = key.value if type(key) is BoolKey else key
            raise Fault(f"no such key: {shown!r}") from None
    if type(container) is not list:
        raise Fault(f"{described(container)} cannot be indexed")
    if type(index) is float and index.is_integer():
        index = int(index)
    elif type(index) is not int and type(index) is not Uint:
        raise Fault(f"the index of a list is an integer, not {described(index)}")
    if 0 <= index < len(container):
        return container[index]
    raise Fault(f"index {int(index)} is outside of a list of {len(container)}")


def list_literal(items: Sequence[Run]) -> Run:
    """`[item, …]`."""
    return lambda view: [item(view) for item in items]


def map_literal(keys: Sequence[Run], values: Sequence[Run], at: int) -> Run:
    """`{key: value, …}`."""

    def run(view: EntryView) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        for key, value in zip(keys, values, strict=True):
            found = key(view)
            try:
                hashed = key_of(found)
            except Fault as fault:
                raise Fault(fault.reason, at) from None
            if hashed in made:
                raise Fault(f"the key {found!r} stands twice in the map", at)
            made[hashed] = value(view)
        return made

    return run
