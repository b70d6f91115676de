"""Every operator, function and method that an expression can use, with its overloads."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from enum import Enum
from typing import Any

import msgspec

from tape.cel import arithmetic, conversions, mathematics, regex, string_format, strings, times
from tape.cel.celtypes import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    LIST,
    MAP,
    PYTHON_TYPES,
    STRING,
    STRINGS,
    TIMESTAMP,
    TYPE,
    UINT,
    Type,
    list_of,
)
from tape.cel.values import TYPE_NAMES, TypeValue

Implementation = Callable[..., Any]


class Overload(msgspec.Struct, frozen=True):
    """One way to call a function."""

    parameters: tuple[Type, ...]
    result: Type
    run: Implementation


class Weight(Enum):
    """How the work of a function grows: not at all, with the size of its arguments, or with all that is in them."""

    NONE = "none"
    FLAT = "flat"
    DEEP = "deep"


class Function(msgspec.Struct, frozen=True):
    """A function and its overloads."""

    name: str
    overloads: tuple[Overload, ...]
    table: dict[tuple[type, ...], Implementation]
    weight: Weight = Weight.NONE
    is_variadic: bool = False


FUNCTIONS: dict[str, Function] = {}
METHODS: dict[str, Function] = {}
OPERATORS: dict[str, Function] = {}


def _define(
    namespace: dict[str, Function],
    name: str,
    *overloads: Overload,
    weight: Weight = Weight.NONE,
    is_variadic: bool = False,
) -> None:
    table: dict[tuple[type, ...], Implementation] = {}
    for overload in overloads:
        if DYN not in overload.parameters:
            table[tuple(PYTHON_TYPES[parameter.name] for parameter in overload.parameters)] = overload.run
    namespace[name] = Function(name, overloads, table, weight, is_variadic)


def _same(value: Any) -> Any:
    return value


def _type_of(value: Any) -> TypeValue:
    return TypeValue(TYPE_NAMES[type(value)])


def _contains(text: str, part: str) -> bool:
    return part in text


def _shown_bool(value: bool) -> str:
    return "true" if value else "false"


def _shown_int(value: int) -> str:
    return str(int(value))


def _of(*types: Type, to: Type, by: Implementation) -> Overload:
    return Overload(types, to, by)


_define(
    OPERATORS,
    "+",
    _of(INT, INT, to=INT, by=arithmetic.add_ints),
    _of(UINT, UINT, to=UINT, by=arithmetic.add_uints),
    _of(DOUBLE, DOUBLE, to=DOUBLE, by=operator.add),
    _of(STRING, STRING, to=STRING, by=strings.concatenate),
    _of(BYTES, BYTES, to=BYTES, by=strings.concatenate),
    _of(LIST, LIST, to=LIST, by=strings.concatenate),
    _of(TIMESTAMP, DURATION, to=TIMESTAMP, by=arithmetic.add_to_timestamp),
    _of(DURATION, TIMESTAMP, to=TIMESTAMP, by=arithmetic.add_timestamp),
    _of(DURATION, DURATION, to=DURATION, by=arithmetic.add_durations),
    weight=Weight.FLAT,
)
_define(
    OPERATORS,
    "-",
    _of(INT, INT, to=INT, by=arithmetic.subtract_ints),
    _of(UINT, UINT, to=UINT, by=arithmetic.subtract_uints),
    _of(DOUBLE, DOUBLE, to=DOUBLE, by=operator.sub),
    _of(TIMESTAMP, TIMESTAMP, to=DURATION, by=arithmetic.subtract_timestamps),
    _of(TIMESTAMP, DURATION, to=TIMESTAMP, by=arithmetic.subtract_from_timestamp),
    _of(DURATION, DURATION, to=DURATION, by=arithmetic.subtract_durations),
)
_define(
    OPERATORS,
    "*",
    _of(INT, INT, to=INT, by=arithmetic.multiply_ints),
    _of(UINT, UINT, to=UINT, by=arithmetic.multiply_uints),
    _of(DOUBLE, DOUBLE, to=DOUBLE, by=operator.mul),
)
_define(
    OPERATORS,
    "/",
    _of(INT, INT, to=INT, by=arithmetic.divide_ints),
    _of(UINT, UINT, to=UINT, by=arithmetic.divide_uints),
    _of(DOUBLE, DOUBLE, to=DOUBLE, by=arithmetic.divide_doubles),
)
_define(
    OPERATORS,
    "%",
    _of(INT, INT, to=INT, by=arithmetic.remainder_of_ints),
    _of(UINT, UINT, to=UINT, by=arithmetic.remainder_of_uints),
)
_define(
    OPERATORS,
    "-_",
    _of(INT, to=INT, by=arithmetic.negate_int),
    _of(DOUBLE, to=DOUBLE, by=operator.neg),
)
_define(OPERATORS, "!_", _of(BOOL, to=BOOL, by=operator.not_))

# ── conversions ──────────────────────────────────────────────────────────────────────────────────

_define(
    FUNCTIONS,
    "int",
    _of(INT, to=INT, by=_same),
    _of(UINT, to=INT, by=conversions.int_of_uint),
    _of(DOUBLE, to=INT, by=conversions.int_of_double),
    _of(STRING, to=INT, by=conversions.int_of_string),
    _of(TIMESTAMP, to=INT, by=conversions.int_of_timestamp),
)
_define(
    FUNCTIONS,
    "uint",
    _of(UINT, to=UINT, by=_same),
    _of(INT, to=UINT, by=conversions.uint_of_int),
    _of(DOUBLE, to=UINT, by=conversions.uint_of_double),
    _of(STRING, to=UINT, by=conversions.uint_of_string),
)
_define(
    FUNCTIONS,
    "double",
    _of(DOUBLE, to=DOUBLE, by=_same),
    _of(INT, to=DOUBLE, by=float),
    _of(UINT, to=DOUBLE, by=float),
    _of(STRING, to=DOUBLE, by=conversions.double_of_string),
)
_define(
    FUNCTIONS,
    "string",
    _of(STRING, to=STRING, by=_same),
    _of(INT, to=STRING, by=_shown_int),
    _of(UINT, to=STRING, by=_shown_int),
    _of(DOUBLE, to=STRING, by=conversions.string_of_double),
    _of(BOOL, to=STRING, by=_shown_bool),
    _of(BYTES, to=STRING, by=conversions.string_of_bytes),
    _of(TIMESTAMP, to=STRING, by=times.write_timestamp),
    _of(DURATION, to=STRING, by=times.write_duration),
    weight=Weight.FLAT,
)
_define(
    FUNCTIONS,
    "bytes",
    _of(BYTES, to=BYTES, by=_same),
    _of(STRING, to=BYTES, by=conversions.bytes_of_string),
    weight=Weight.FLAT,
)
_define(FUNCTIONS, "bool", _of(BOOL, to=BOOL, by=_same), _of(STRING, to=BOOL, by=conversions.bool_of_string))
_define(
    FUNCTIONS,
    "timestamp",
    _of(TIMESTAMP, to=TIMESTAMP, by=_same),
    _of(STRING, to=TIMESTAMP, by=times.read_timestamp),
    _of(INT, to=TIMESTAMP, by=times.timestamp_of_seconds),
)
_define(
    FUNCTIONS,
    "duration",
    _of(DURATION, to=DURATION, by=_same),
    _of(STRING, to=DURATION, by=times.read_duration),
    weight=Weight.FLAT,
)
_define(FUNCTIONS, "dyn", _of(DYN, to=DYN, by=_same))
_define(FUNCTIONS, "type", _of(DYN, to=TYPE, by=_type_of))

# ── strings and containers ───────────────────────────────────────────────────────────────────────

for _namespace in (FUNCTIONS, METHODS):
    _define(_namespace, "size", *(_of(sized, to=INT, by=len) for sized in (STRING, BYTES, LIST, MAP)))
    _define(_namespace, "matches", _of(STRING, STRING, to=BOOL, by=regex.matches), weight=Weight.FLAT)

_define(METHODS, "startsWith", _of(STRING, STRING, to=BOOL, by=str.startswith), weight=Weight.FLAT)
_define(METHODS, "endsWith", _of(STRING, STRING, to=BOOL, by=str.endswith), weight=Weight.FLAT)
_define(METHODS, "contains", _of(STRING, STRING, to=BOOL, by=_contains), weight=Weight.FLAT)
_define(METHODS, "charAt", _of(STRING, INT, to=STRING, by=strings.char_at))
_define(
    METHODS,
    "indexOf",
    _of(STRING, STRING, to=INT, by=strings.index_of),
    _of(STRING, STRING, INT, to=INT, by=strings.index_of),
    weight=Weight.FLAT,
)
_define(
    METHODS,
    "lastIndexOf",
    _of(STRING, STRING, to=INT, by=strings.last_index_of),
    _of(STRING, STRING, INT, to=INT, by=strings.last_index_of_from),
    weight=Weight.FLAT,
)
_define(
    METHODS,
    "join",
    _of(STRINGS, to=STRING, by=strings.join),
    _of(STRINGS, STRING, to=STRING, by=strings.join),
    weight=Weight.FLAT,
)
_define(METHODS, "lowerAscii", _of(STRING, to=STRING, by=strings.lower_ascii), weight=Weight.FLAT)
_define(METHODS, "upperAscii", _of(STRING, to=STRING, by=strings.upper_ascii), weight=Weight.FLAT)
_define(
    METHODS,
    "replace",
    _of(STRING, STRING, STRING, to=STRING, by=strings.replace),
    _of(STRING, STRING, STRING, INT, to=STRING, by=strings.replace),
    weight=Weight.FLAT,
)
_define(
    METHODS,
    "split",
    _of(STRING, STRING, to=list_of(STRING), by=strings.split),
    _of(STRING, STRING, INT, to=list_of(STRING), by=strings.split),
    weight=Weight.FLAT,
)
_define(
    METHODS,
    "substring",
    _of(STRING, INT, to=STRING, by=strings.substring),
    _of(STRING, INT, INT, to=STRING, by=strings.substring_between),
    weight=Weight.FLAT,
)
_define(METHODS, "trim", _of(STRING, to=STRING, by=strings.trim), weight=Weight.FLAT)
_define(METHODS, "reverse", _of(STRING, to=STRING, by=strings.reverse), weight=Weight.FLAT)
_define(METHODS, "format", _of(STRING, LIST, to=STRING, by=string_format.format_string), weight=Weight.DEEP)
_define(FUNCTIONS, "strings.quote", _of(STRING, to=STRING, by=strings.quote), weight=Weight.FLAT)

# ── time ─────────────────────────────────────────────────────────────────────────────────────────

for _name, _moment, _span in (
    ("getFullYear", times.full_year, None),
    ("getMonth", times.month, None),
    ("getDate", times.day_of_month_from_1, None),
    ("getDayOfMonth", times.day_of_month_from_0, None),
    ("getDayOfWeek", times.day_of_week, None),
    ("getDayOfYear", times.day_of_year, None),
    ("getHours", times.hours, times.duration_hours),
    ("getMinutes", times.minutes, times.duration_minutes),
    ("getSeconds", times.seconds, times.duration_seconds),
    ("getMilliseconds", times.milliseconds, times.duration_milliseconds),
):
    _define(
        METHODS,
        _name,
        _of(TIMESTAMP, to=INT, by=_moment),
        _of(TIMESTAMP, STRING, to=INT, by=_moment),
        *([_of(DURATION, to=INT, by=_span)] if _span else []),
    )

# ── math ─────────────────────────────────────────────────────────────────────────────────────────

for _name, _choose in (("math.greatest", mathematics.greatest), ("math.least", mathematics.least)):
    _define(FUNCTIONS, _name, _of(LIST, to=DYN, by=_choose), weight=Weight.FLAT, is_variadic=True)

for _name, _ints, _uints in (
    ("bitAnd", mathematics.and_ints, mathematics.and_uints),
    ("bitOr", mathematics.or_ints, mathematics.or_uints),
    ("bitXor", mathematics.xor_ints, mathematics.xor_uints),
):
    _define(FUNCTIONS, f"math.{_name}", _of(INT, INT, to=INT, by=_ints), _of(UINT, UINT, to=UINT, by=_uints))
_define(
    FUNCTIONS,
    "math.bitNot",
    _of(INT, to=INT, by=mathematics.not_int),
    _of(UINT, to=UINT, by=mathematics.not_uint),
)
_define(
    FUNCTIONS,
    "math.bitShiftLeft",
    _of(INT, INT, to=INT, by=mathematics.shift_int_left),
    _of(UINT, INT, to=UINT, by=mathematics.shift_uint_left),
)
_define(
    FUNCTIONS,
    "math.bitShiftRight",
    _of(INT, INT, to=INT, by=mathematics.shift_int_right),
    _of(UINT, INT, to=UINT, by=mathematics.shift_uint_right),
)
_define(
    FUNCTIONS,
    "math.abs",
    _of(INT, to=INT, by=mathematics.absolute_int),
    _of(UINT, to=UINT, by=mathematics.same_uint),
    _of(DOUBLE, to=DOUBLE, by=abs),
)
_define(
    FUNCTIONS,
    "math.sign",
    _of(INT, to=INT, by=mathematics.sign_of_int),
    _of(UINT, to=UINT, by=mathematics.sign_of_uint),
    _of(DOUBLE, to=DOUBLE, by=mathematics.sign_of_double),
)
for _name, _round in (
    ("ceil", mathematics.ceiling),
    ("floor", mathematics.floor),
    ("round", mathematics.round_half_away),
    ("trunc", mathematics.truncate),
):
    _define(FUNCTIONS, f"math.{_name}", _of(DOUBLE, to=DOUBLE, by=_round))
_define(
    FUNCTIONS,
    "math.sqrt",
    *(_of(number, to=DOUBLE, by=mathematics.square_root) for number in (INT, UINT, DOUBLE)),
)
for _name, _test in (("isInf", math.isinf), ("isNaN", math.isnan), ("isFinite", math.isfinite)):
    _define(FUNCTIONS, f"math.{_name}", _of(DOUBLE, to=BOOL, by=_test))

NAMESPACES = frozenset(name.partition(".")[0] for name in FUNCTIONS if "." in name)
# The names that stand for types.
TYPES = {name: TypeValue(name) for name in TYPE_NAMES.values()}
