"""`format` of CEL's strings extension: %s %d %f %e %b %o %x %X %%."""

from __future__ import annotations

import math
import re
from typing import Any

from tape.cel.conversions import string_of_double
from tape.cel.strings import check_size
from tape.cel.times import write_duration, write_timestamp
from tape.cel.values import BoolKey, Duration, Fault, Timestamp, TypeValue, Uint, described

_CLAUSE = re.compile(r"%(?:(%)|(?:\.([0-9]*))?(.?))", re.DOTALL)
_MAX_PRECISION = 1_000
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def format_string(template: str, arguments: list[Any]) -> str:
    """The template with each clause replaced by its argument."""
    position, used = 0, 0
    parts: list[str] = []
    size = 0
    for found in _CLAUSE.finditer(template):
        parts.append(template[position : found.start()])
        position = found.end()
        if found[1]:
            parts.append("%")
            continue
        if used == len(arguments):
            raise Fault(f"format() has {len(arguments)} arguments and needs more")
        parts.append(_clause(found[3], found[2], arguments[used]))
        used += 1
        size += len(parts[-1])
        check_size(size)
    parts.append(template[position:])
    return "".join(parts)


def _clause(clause: str, precision: str | None, value: Any) -> str:
    if precision is not None and (not precision or len(precision) > 4 or int(precision) > _MAX_PRECISION):
        raise Fault(f"the precision of a format is a number up to {_MAX_PRECISION}, as in %.2f")
    match clause:
        case "s":
            return _shown(value)
        case "d":
            if type(value) is int or type(value) is Uint:
                return str(int(value))
            if type(value) is float:
                return _fixed(value, None, "f")
        case "f" | "e":
            if type(value) in (int, Uint, float):
                return _fixed(float(value), precision, clause)
            if type(value) is str and value in _NOT_FINITE:
                return value
        case "b" | "o":
            if type(value) in (int, Uint) or (type(value) is bool and clause == "b"):
                return format(int(value), clause)
        case "x" | "X":
            if type(value) in (int, Uint):
                return format(int(value), clause)
            if type(value) in (str, bytes):
                digits = (value.encode() if type(value) is str else value).hex()
                return str(digits.upper() if clause == "X" else digits)
        case _:
            raise Fault(f"%{clause} is no clause of format(); there are %s %d %f %e %b %o %x %X and %%")
    raise Fault(f"%{clause} of format() does not take {described(value)}")


def _fixed(value: float, precision: str | None, clause: str) -> str:
    if math.isfinite(value):
        return f"{value:.{int(precision or '6') if precision is not None else 6}{clause}}"
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _shown(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case int():
            return str(int(value))
        case float():
            return string_of_double(value) if math.isfinite(value) else _fixed(value, None, "f")
        case bytes():
            return value.decode(errors="replace")
        case list():
            return f"[{', '.join(map(_shown, value))}]"
        case dict():
            pairs = sorted((_shown(key), _shown(item)) for key, item in value.items())
            return f"{{{', '.join(f'{key}: {item}' for key, item in pairs)}}}"
        case BoolKey():
            return _shown(value.value)
        case Timestamp():
            return write_timestamp(value)
        case Duration():
            return write_duration(value)
        case TypeValue():
            return value.name
    raise Fault("format() cannot show this value")
