"""The types that an expression can have before it is evaluated."""

from __future__ import annotations

import msgspec

from tape.cel.values import Duration, Timestamp, TypeValue, Uint


class Type(msgspec.Struct, frozen=True, gc=False):
    """A type as the checker sees it; `dyn` is any type at all, known only when evaluated."""

    name: str
    parameters: tuple[Type, ...] = ()

    def __str__(self) -> str:
        inner = ", ".join(map(str, self.parameters))
        return f"{self.name}({inner})" if inner else self.name


DYN = Type("dyn")
NULL = Type("null")
BOOL = Type("bool")
INT = Type("int")
UINT = Type("uint")
DOUBLE = Type("double")
STRING = Type("string")
BYTES = Type("bytes")
TIMESTAMP = Type("timestamp")
DURATION = Type("duration")
TYPE = Type("type")
LIST = Type("list", (DYN,))
MAP = Type("map", (DYN, DYN))
STRINGS = Type("list", (STRING,))

NUMBERS = frozenset(("int", "uint", "double"))
ORDERED_NAMES = NUMBERS | {"bool", "string", "bytes", "timestamp", "duration"}

PYTHON_TYPES: dict[str, type] = {
    "null": type(None),
    "bool": bool,
    "int": int,
    "uint": Uint,
    "double": float,
    "string": str,
    "bytes": bytes,
    "timestamp": Timestamp,
    "duration": Duration,
    "type": TypeValue,
    "list": list,
    "map": dict,
}
OF_PYTHON = {
    python: LIST if name == "list" else MAP if name == "map" else Type(name) for name, python in PYTHON_TYPES.items()
}


def list_of(element: Type) -> Type:
    """A list of one type of element."""
    return LIST if element is DYN else Type("list", (element,))


def map_of(key: Type, value: Type) -> Type:
    """A map from one type of key to one type of value."""
    return Type("map", (key, value))


def accepts(parameter: Type, argument: Type) -> bool:
    """Whether an argument of this type may turn out to be what the parameter wants."""
    if parameter.name == "dyn" or argument.name == "dyn":
        return True
    if parameter.name != argument.name:
        # CEL lets null stand where a message may be absent, and these two are messages.
        return argument.name == "null" and parameter.name in ("timestamp", "duration")
    return all(map(accepts, parameter.parameters, argument.parameters))


def may_equal(left: Type, right: Type) -> bool:
    """Whether two types can have equal values at all; numbers compare across types."""
    if left.name in NUMBERS and right.name in NUMBERS:
        return True
    if left.name == right.name:
        return all(map(may_equal, left.parameters, right.parameters))
    return accepts(left, right) or accepts(right, left)


def join_types(types: list[Type]) -> Type:
    """The one type of several values, or dyn."""
    first = types[0] if types else DYN
    return first if all(other == first for other in types) else DYN
