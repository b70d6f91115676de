"""CEL's math extension."""

from __future__ import annotations

import math
from typing import Any

from tape.cel.arithmetic import checked_int
from tape.cel.values import NUMERIC, UINT_MAX, Fault, Uint, described

_BITS = 64


def greatest(values: list[Any]) -> Any:
    """The first of the largest, or the largest of one list."""
    best, *others = _numbers(values, "math.greatest()")
    for value in others:
        if value > best:
            best = value
    return best


def least(values: list[Any]) -> Any:
    """The first of the smallest, or the smallest of one list."""
    best, *others = _numbers(values, "math.least()")
    for value in others:
        if value < best:
            best = value
    return best


def _numbers(values: list[Any], name: str) -> list[Any]:
    if len(values) == 1 and type(values[0]) is list:
        values = values[0]
    if not values:
        raise Fault(f"{name} of an empty list")
    for value in values:
        if type(value) not in NUMERIC:
            raise Fault(f"{name} does not take {described(value)}")
    return values


def _signed(bits: int) -> int:
    return bits - (1 << _BITS) if bits >> (_BITS - 1) else bits


def and_ints(left: int, right: int) -> int:
    """The bits that both have."""
    return left & right


def or_ints(left: int, right: int) -> int:
    """The bits that either has."""
    return left | right


def xor_ints(left: int, right: int) -> int:
    """The bits that one of them has."""
    return left ^ right


def not_int(value: int) -> int:
    """The bits that it does not have."""
    return ~value


def and_uints(left: int, right: int) -> Uint:
    """The bits that both have."""
    return Uint(int(left) & int(right))


def or_uints(left: int, right: int) -> Uint:
    """The bits that either has."""
    return Uint(int(left) | int(right))


def xor_uints(left: int, right: int) -> Uint:
    """The bits that one of them has."""
    return Uint(int(left) ^ int(right))


def not_uint(value: int) -> Uint:
    """The bits that it does not have."""
    return Uint(UINT_MAX ^ int(value))


def _shift_width(count: int) -> int:
    if count < 0:
        raise Fault(f"a shift by {count} bits; it must not be negative")
    return min(count, _BITS)


def shift_int_left(value: int, count: int) -> int:
    """What leaves the 64 bits is lost."""
    return _signed(value << _shift_width(count) & UINT_MAX)


def shift_int_right(value: int, count: int) -> int:
    """Fills with zeros, also for a negative number."""
    return _signed((value & UINT_MAX) >> _shift_width(count))


def shift_uint_left(value: int, count: int) -> Uint:
    """What leaves the 64 bits is lost."""
    return Uint(int(value) << _shift_width(count) & UINT_MAX)


def shift_uint_right(value: int, count: int) -> Uint:
    """Fills with zeros."""
    return Uint(int(value) >> _shift_width(count))


def absolute_int(value: int) -> int:
    """Without its sign; the smallest int has no counterpart."""
    return checked_int(abs(value))


def same_uint(value: Uint) -> Uint:
    """A uint has no sign to lose."""
    return value


def ceiling(value: float) -> float:
    """The next integer above."""
    return math.copysign(float(math.ceil(value)), value) if math.isfinite(value) else value


def floor(value: float) -> float:
    """The next integer below."""
    return math.copysign(float(math.floor(value)), value) if math.isfinite(value) else value


def truncate(value: float) -> float:
    """The integer next to it towards zero."""
    return math.copysign(float(math.trunc(value)), value) if math.isfinite(value) else value


def round_half_away(value: float) -> float:
    """To the nearest integer; halves go away from zero."""
    if not math.isfinite(value):
        return value
    magnitude = abs(value)
    whole = math.floor(magnitude)
    return math.copysign(float(whole + (magnitude - whole >= 0.5)), value)


def sign_of_int(value: int) -> int:
    """-1, 0 or 1."""
    return (value > 0) - (value < 0)


def sign_of_uint(value: int) -> Uint:
    """0u or 1u."""
    return Uint(value > 0)


def sign_of_double(value: float) -> float:
    """-1.0, 0.0, 1.0 or NaN."""
    return value if math.isnan(value) else float((value > 0) - (value < 0))


def square_root(value: float) -> float:
    """NaN of a negative number."""
    return math.sqrt(value) if value >= 0 else math.nan
