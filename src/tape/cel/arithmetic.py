"""Arithmetic with CEL's rules: 64 bits, an error instead of a wrap, division towards zero."""

from __future__ import annotations

import math

from tape.cel.times import FIRST, LAST
from tape.cel.values import INT_MAX, INT_MIN, UINT_MAX, Duration, Fault, Timestamp, Uint


def checked_int(value: int) -> int:
    """The value, if it fits into an int."""
    if INT_MIN <= value <= INT_MAX:
        return value
    raise Fault("integer overflow")


def checked_uint(value: int) -> Uint:
    """The value as a uint, if it fits."""
    if 0 <= value <= UINT_MAX:
        return Uint(value)
    raise Fault("unsigned integer overflow")


def add_ints(left: int, right: int) -> int:
    """`int + int`."""
    return checked_int(left + right)


def subtract_ints(left: int, right: int) -> int:
    """`int - int`."""
    return checked_int(left - right)


def multiply_ints(left: int, right: int) -> int:
    """`int * int`."""
    return checked_int(left * right)


def divide_ints(left: int, right: int) -> int:
    """`int / int`, cut towards zero."""
    if right == 0:
        raise Fault("division by zero")
    quotient = abs(left) // abs(right)
    return checked_int(quotient if (left < 0) == (right < 0) else -quotient)


def remainder_of_ints(left: int, right: int) -> int:
    """`int % int`, with the sign of the left one."""
    if right == 0:
        raise Fault("modulus by zero")
    if left == INT_MIN and right == -1:
        raise Fault("integer overflow")
    remainder = abs(left) % abs(right)
    return -remainder if left < 0 else remainder


def negate_int(value: int) -> int:
    """`-int`."""
    return checked_int(-value)


def add_uints(left: int, right: int) -> Uint:
    """`uint + uint`."""
    return checked_uint(int(left) + int(right))


def subtract_uints(left: int, right: int) -> Uint:
    """`uint - uint`."""
    return checked_uint(int(left) - int(right))


def multiply_uints(left: int, right: int) -> Uint:
    """`uint * uint`."""
    return checked_uint(int(left) * int(right))


def divide_uints(left: int, right: int) -> Uint:
    """`uint / uint`."""
    if right == 0:
        raise Fault("division by zero")
    return Uint(int(left) // int(right))


def remainder_of_uints(left: int, right: int) -> Uint:
    """`uint % uint`."""
    if right == 0:
        raise Fault("modulus by zero")
    return Uint(int(left) % int(right))


def divide_doubles(left: float, right: float) -> float:
    """`double / double`; by zero it is infinite or NaN, not an error."""
    if right:
        return left / right
    if left == 0 or math.isnan(left):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1.0, right)


def checked_duration(nanos: int) -> Duration:
    """A computed duration, which CEL keeps within 64 bits of nanoseconds."""
    if INT_MIN <= nanos <= INT_MAX:
        return Duration(nanos)
    raise Fault("duration overflow")


def checked_timestamp(nanos: int) -> Timestamp:
    """A computed moment within the years 1 to 9999."""
    if FIRST <= nanos <= LAST:
        return Timestamp(nanos)
    raise Fault("timestamp overflow")


def _fits(duration: Duration) -> int:
    return checked_duration(duration.nanos).nanos


def add_durations(left: Duration, right: Duration) -> Duration:
    """`duration + duration`."""
    return checked_duration(_fits(left) + _fits(right))


def subtract_durations(left: Duration, right: Duration) -> Duration:
    """`duration - duration`."""
    return checked_duration(_fits(left) - _fits(right))


def add_to_timestamp(moment: Timestamp, span: Duration) -> Timestamp:
    """`timestamp + duration`."""
    return checked_timestamp(moment.nanos + span.nanos)


def add_timestamp(span: Duration, moment: Timestamp) -> Timestamp:
    """`duration + timestamp`."""
    return checked_timestamp(moment.nanos + span.nanos)


def subtract_from_timestamp(moment: Timestamp, span: Duration) -> Timestamp:
    """`timestamp - duration`."""
    return checked_timestamp(moment.nanos - span.nanos)


def subtract_timestamps(left: Timestamp, right: Timestamp) -> Duration:
    """`timestamp - timestamp`, the time between them."""
    return checked_duration(left.nanos - right.nanos)
