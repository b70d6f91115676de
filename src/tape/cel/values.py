"""CEL's values in Python, and what it means that two of them are equal.

| CEL | Python | | CEL | Python |
|---|---|---|---|---|
| int | `int` | | null | `None` |
| uint | `Uint` | | list | `list` |
| double | `float` | | map | `dict` (a bool key is a `BoolKey`) |
| bool | `bool` | | timestamp | `Timestamp` |
| string | `str` | | duration | `Duration` |
| bytes | `bytes` | | type | `TypeValue` |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from tape.cel.limits import STEP_SIZE_BITS

INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1
UINT_MAX = (1 << 64) - 1


class _Problem(Exception):
    """A reason and, as soon as it is known, an offset into the text.

    Both are kept in `args`: a constructor of its own would double the cost of an error, and entries
    without the field that a predicate asks for are the rule, not the exception.
    """

    @property
    def reason(self) -> str:
        return str(self.args[0])

    @property
    def at(self) -> int:
        return int(self.args[1]) if len(self.args) > 1 else -1

    @at.setter
    def at(self, offset: int) -> None:
        self.args = (self.args[0], offset)


class Fault(_Problem):
    """An evaluation error on its way up; `&&`, `||` and `?:` may absorb it. Never leaves this package."""


class Exhausted(_Problem):
    """The evaluation has used up what it may cost; nothing absorbs that."""


class Uint(int):
    """An unsigned 64-bit integer, which is another type than int."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{int(self)}u"


class Timestamp(msgspec.Struct, frozen=True, order=True, gc=False):
    """A moment: nanoseconds since 1970 in UTC, from the year 1 to 9999."""

    nanos: int


class Duration(msgspec.Struct, frozen=True, order=True, gc=False):
    """A span of time in nanoseconds."""

    nanos: int


class TypeValue(msgspec.Struct, frozen=True, gc=False):
    """A type as a value."""

    name: str


class BoolKey:
    """A bool as the key of a map: Python would take `True` and `1` for the same key, CEL does not."""

    __slots__ = ("value",)

    def __init__(self, value: bool) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"BoolKey({self.value})"


_FALSE_KEY, _TRUE_KEY = BoolKey(False), BoolKey(True)

TYPE_NAMES: dict[type, str] = {
    int: "int",
    Uint: "uint",
    float: "double",
    bool: "bool",
    str: "string",
    bytes: "bytes",
    type(None): "null_type",
    list: "list",
    dict: "map",
    Timestamp: "google.protobuf.Timestamp",
    Duration: "google.protobuf.Duration",
    TypeValue: "type",
}
_SHORT_NAMES = {
    "google.protobuf.Timestamp": "timestamp",
    "google.protobuf.Duration": "duration",
    "null_type": "null",
}
NUMERIC = frozenset((int, float, Uint))
ORDERED = frozenset((int, float, Uint, bool, str, bytes, Timestamp, Duration))


def kind_of(value: Any) -> str:
    """The name of a value's type as messages say it."""
    name = TYPE_NAMES[type(value)]
    return _SHORT_NAMES.get(name, name)


def described(value: Any) -> str:
    """The type of a value with its article."""
    return with_article(kind_of(value))


def with_article(name: str) -> str:
    """`an int`, `a uint`."""
    return f"an {name}" if name.startswith("int") else f"a {name}"


def no_overload(operation: str, operands: Sequence[Any]) -> Fault:
    """The error of an operation on values of types that it does not take."""
    return Fault(f"{operation} does not take {' and '.join(map(kind_of, operands)) or 'nothing'}")


def equals(left: Any, right: Any) -> bool:
    """CEL's equality: numbers by value across types, containers element by element, NaN never."""
    kind, other = type(left), type(right)
    if kind is other:
        if kind is list:
            return len(left) == len(right) and all(map(equals, left, right))
        if kind is dict:
            return len(left) == len(right) and all(
                key in right and equals(value, right[key]) for key, value in left.items()
            )
        return bool(left == right)
    return kind in NUMERIC and other in NUMERIC and bool(left == right)


def weight_of(value: Any, limit: int) -> int:
    """How many values there are in a value, itself included; 256 characters count as one.

    The walk stops beyond `limit`: a value may hold itself many times over, so that its weight has no bound.
    """
    weight = 0
    waiting = [value]
    while waiting:
        value = waiting.pop()
        weight += 1
        if type(value) is list:
            waiting += value
        elif type(value) is dict:
            waiting += value.values()
        elif type(value) is str:
            weight += len(value) >> STEP_SIZE_BITS
        if weight + len(waiting) > limit:
            return limit + 1
    return weight


def key_of(value: Any) -> Any:
    """A value as the key of a map literal."""
    kind = type(value)
    if kind is str or kind is int or kind is Uint:
        return value
    if kind is bool:
        return _TRUE_KEY if value else _FALSE_KEY
    raise Fault(f"the key of a map is a string, an int, a uint or a bool, not {described(value)}")


def lookup_key(value: Any) -> Any:
    """A value to look up in a map with: a double finds the integer that it equals."""
    return value if type(value) is float else key_of(value)


def elements_of(value: Any) -> Iterable[Any]:
    """What a macro walks through: the elements of a list or the keys of a map."""
    if type(value) is list:
        return value
    if type(value) is dict:
        # One by one: a macro may need no more than the first of many.
        return (key.value if type(key) is BoolKey else key for key in value)
    raise Fault(f"a macro walks through a list or a map, not {described(value)}")


def revealed(value: Any) -> Any:
    """The value for callers outside of CEL: containers are copied, with plain keys."""
    if type(value) is list:
        return [revealed(item) for item in value]
    if type(value) is dict:
        plain = {key.value if type(key) is BoolKey else key: revealed(item) for key, item in value.items()}
        # Python cannot hold both true and 1 as keys of one dict; then the bools stay what they are.
        return plain if len(plain) == len(value) else {key: revealed(item) for key, item in value.items()}
    return value
