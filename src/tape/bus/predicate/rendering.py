"""Values for readers: in CEL's own spelling, and of JSON's types."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

from tape.bus.predicate.conversions import string_of_double
from tape.bus.predicate.times import write_duration, write_timestamp
from tape.bus.predicate.values import BoolKey, Duration, Timestamp, TypeValue, Uint

_MAX_SHOWN = 80


def shown(value: Any) -> str:
    """The value as CEL would write it, cut to one line of a terminal."""
    text = _literal(value, 4)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"


def _literal(value: Any, levels: int) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case Uint():
            return f"{int(value)}u"
        case float():
            text = string_of_double(value)
            return f"{text}.0" if text.lstrip("-").isdigit() else text
        case str():
            return json.dumps(value[: _MAX_SHOWN + 1], ensure_ascii=False)
        case bytes():
            return f"b{json.dumps(value[: _MAX_SHOWN + 1].decode('latin-1'))}"
        case Timestamp():
            return f'timestamp("{write_timestamp(value)}")'
        case Duration():
            return f'duration("{write_duration(value)}")'
        case TypeValue():
            return value.name
        case list():
            inner = ", ".join(_literal(item, levels - 1) for item in value[:20]) if levels else "…"
            return f"[{inner}]"
        case dict():
            pairs = list(value.items())[:20] if levels else []
            inner = ", ".join(f"{_literal(key, 0)}: {_literal(item, levels - 1)}" for key, item in pairs)
            return f"{{{inner if levels else '…'}}}"
        case BoolKey():
            return _literal(value.value, levels)
    return str(value)


def plain(value: Any) -> Any:
    """The value of JSON's types alone: times as text, bytes in base64, keys as text."""
    match value:
        case bool() | str() | None:
            return value
        case int():
            return int(value)
        case float():
            return value if math.isfinite(value) else string_of_double(value)
        case bytes():
            return base64.b64encode(value).decode()
        case Timestamp():
            return write_timestamp(value)
        case Duration():
            return write_duration(value)
        case TypeValue():
            return value.name
        case BoolKey():
            return value.value
        case list():
            return [plain(item) for item in value]
        case dict():
            return {key if isinstance(key, str) else shown(key): plain(item) for key, item in value.items()}
    return str(value)
