"""The conversions between types, such as `int(…)` and `string(…)`."""

from __future__ import annotations

import math
import re
from decimal import Decimal

from tape.cel.times import SECOND
from tape.cel.values import INT_MAX, UINT_MAX, Fault, Timestamp, Uint

_INTEGER = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?:inf(?:inity)?|nan)", re.IGNORECASE)
_HEX_NUMBER = re.compile(r"[+-]?0x(?:[0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)(?:p[+-]?[0-9]+)?", re.IGNORECASE)
_LONGEST_NUMBER = 400  # the largest double has 309 digits before the point
_SPACE = " \t\n\v\f\r"
_BOOLS = {
    **dict.fromkeys(("true", "True", "TRUE", "t", "1"), True),
    **dict.fromkeys(("false", "False", "FALSE", "f", "0"), False),
}


def int_of_string(text: str) -> int:
    """Decimal digits with or without a sign."""
    value = _integer(text, "an int")
    if not -INT_MAX - 1 <= value <= INT_MAX:
        raise Fault(f"{text[:40]!r} does not fit into an int")
    return value


def uint_of_string(text: str) -> Uint:
    """Decimal digits."""
    value = _integer(text, "a uint")
    if not 0 <= value <= UINT_MAX or "-" in text:
        raise Fault(f"{text[:40]!r} does not fit into a uint")
    return Uint(value)


def _integer(text: str, what: str) -> int:
    stripped = text.strip(_SPACE)
    if _INTEGER.fullmatch(stripped) is None:
        raise Fault(f"{text[:40]!r} is not {what}")
    return int(stripped)


def int_of_double(value: float) -> int:
    """Cut towards zero."""
    # The bounds themselves are left out: near them a double stands for many integers.
    if not -9.223372036854775808e18 < value < 9.223372036854775808e18:
        raise Fault(f"{value} does not fit into an int")
    return int(value)


def int_of_uint(value: int) -> int:
    """The same number, if an int can hold it."""
    if value > INT_MAX:
        raise Fault(f"{int(value)}u does not fit into an int")
    return int(value)


def int_of_timestamp(moment: Timestamp) -> int:
    """Whole seconds since 1970."""
    return moment.nanos // SECOND


def uint_of_int(value: int) -> Uint:
    """The same number, unless it is negative."""
    if value < 0:
        raise Fault(f"{value} does not fit into a uint")
    return Uint(value)


def uint_of_double(value: float) -> Uint:
    """Cut towards zero."""
    if not 0.0 <= value < 1.8446744073709551616e19:
        raise Fault(f"{value} does not fit into a uint")
    return Uint(value)


def double_of_string(text: str) -> float:
    """A number with or without a point and an exponent, `inf` or `nan`."""
    if len(text) > _LONGEST_NUMBER:
        raise Fault(f"a text of {len(text)} characters is not a number")
    # Python's float reads more than CEL's double: underscores, other scripts, other spaces.
    if text.isascii() and text.isprintable() and "_" not in text:
        try:
            return float(text)
        except ValueError:
            pass
    stripped = text.strip(_SPACE)
    if _NUMBER.fullmatch(stripped):
        return float(stripped)
    if _HEX_NUMBER.fullmatch(stripped):
        try:
            return float.fromhex(stripped)
        except OverflowError:
            return math.copysign(math.inf, -1.0 if stripped[0] == "-" else 1.0)
    raise Fault(f"{text[:40]!r} is not a number")


def string_of_double(value: float) -> str:
    """The shortest digits that read back as the same double; an exponent below 1e-4 and from 1e6."""
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if value == 0:
        return "-0" if math.copysign(1.0, value) < 0 else "0"
    sign, parts, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    magnitude = len(parts) + exponent - 1
    if -4 <= magnitude < 6:
        return repr(value).removesuffix(".0")
    digits = "".join(map(str, parts)).rstrip("0")
    point = "." if len(digits) > 1 else ""
    return f"{'-' * sign}{digits[0]}{point}{digits[1:]}e{magnitude:+03}"


def string_of_bytes(value: bytes) -> str:
    """UTF-8 as text."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Fault("the bytes are not UTF-8") from None


def bytes_of_string(text: str) -> bytes:
    """Text as UTF-8."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Fault("the string has a lone surrogate, which is not Unicode text") from None


def bool_of_string(text: str) -> bool:
    """`true` or `false` in one of five spellings each."""
    try:
        return _BOOLS[text]
    except KeyError:
        raise Fault(f"{text[:40]!r} is not a bool; write true or false") from None
