"""Google's implementation of CEL, asked the same questions."""

from __future__ import annotations

import ctypes
import datetime
import math
from collections.abc import Mapping
from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_math, ext_strings

from tape.cel import Duration, Timestamp, TypeValue, Uint, display
from tape.cel.values import BoolKey

# The oracle cannot declare a variable `type`, which is also the name of a CEL type.
_TYPES = {
    "payload": cel.Type.DYN,
    **dict.fromkeys(("global_seq", "seq", "ts_ms", "schema_version"), cel.Type.INT),
    **dict.fromkeys(("run_id", "kind", "subject", "trace_id", "tenant", "user", "session"), cel.Type.STRING),
}
_ENVIRONMENT = cel.NewEnv(variables=_TYPES, extensions=[ext_strings.ExtStrings(), ext_math.ExtMath()])
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)

# The oracle gives back one reference to None too many for every null that it returns; without some to
# spare that are never taken back, the interpreter would die in the middle of a long run or at its end.
_SPARE_REFERENCES = [None] * 1_000_000
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_SPARE_REFERENCES))

ERROR = "error"
INVALID = "invalid"


def accepts(text: str) -> bool:
    """Whether the text passes its type checker."""
    try:
        _ENVIRONMENT.compile(text)
    except Exception:
        return False
    return True


def evaluate(text: str, variables: Mapping[str, Any]) -> Any:
    """The value in comparable form, without type checks before; ERROR or INVALID if there is none."""
    found = _evaluated(text, variables)
    return found if found is ERROR or found is INVALID else comparable(found)


def shown(text: str, variables: Mapping[str, Any]) -> str:
    """The value as CEL writes it, or `error` or `invalid`."""
    found = _evaluated(text, variables)
    return found if found is ERROR or found is INVALID else display.shown(found)


def _evaluated(text: str, variables: Mapping[str, Any]) -> Any:
    try:
        expression = _ENVIRONMENT.compile(text, disable_check=True)
    except Exception:
        return INVALID
    try:
        result = expression.eval(data=variables)
    except RuntimeError:  # a duplicate key in a map literal
        return ERROR
    if result.type() == cel.Type.ERROR:
        return ERROR
    return _typed(result)


def _typed(result: Any) -> Any:
    """The oracle's value in our types; its own Python values do not distinguish int and uint."""
    kind = result.type().name()
    value = result.value()
    if kind == "UINT":
        return Uint(value)
    if kind == "TIMESTAMP":
        return Timestamp((value - _EPOCH) // _MICROSECOND * 1000)
    if kind == "DURATION":
        return Duration(value // _MICROSECOND * 1000)
    if kind == "TYPE":
        return TypeValue(str(value).lower())
    if kind.startswith("LIST"):
        return [_typed(item) for item in value]
    if kind.startswith("MAP"):
        return {key: _typed(item) for key, item in value.items()}
    return bytes(value) if kind == "BYTES" else value


def comparable(value: Any) -> Any:
    """A value that equals another exactly if type and value are the same, to the oracle's precision."""
    if isinstance(value, float):
        return ("double", "nan" if math.isnan(value) else repr(value))
    if isinstance(value, Timestamp | Duration):
        return (type(value).__name__, value.nanos // 1000)
    if isinstance(value, TypeValue):
        return ("type",)
    if isinstance(value, list):
        return [comparable(item) for item in value]
    if isinstance(value, dict):
        return {key.value if isinstance(key, BoolKey) else key: comparable(item) for key, item in value.items()}
    return (type(value).__name__, value)
