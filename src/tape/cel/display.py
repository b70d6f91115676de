"""Values for readers: in CEL's own spelling, and of JSON's types."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from typing import Any

from tape.cel.conversions import string_of_double
from tape.cel.times import write_duration, write_timestamp
from tape.cel.values import BoolKey, Duration, Timestamp, TypeValue, Uint

_MAX_SHOWN = 80


def shown(value: Any) -> str:
    """The value as CEL would write it, cut to one line of a terminal."""
    text = _Writer(is_brief=True).write(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 1]}…"


def literal(value: Any) -> str:
    """The value as CEL would write it."""
    return _Writer(is_brief=False).write(value)


class _Writer:
    def __init__(self, *, is_brief: bool) -> None:
        # What cannot be seen need not be made: payloads may have a megabyte.
        self._most_items = 20 if is_brief else None
        self._most_characters = _MAX_SHOWN + 1 if is_brief else None
        self._most_levels = 4 if is_brief else 1_000

    def write(self, value: Any, level: int = 0) -> str:
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
                return json.dumps(value[: self._most_characters], ensure_ascii=False)
            case bytes():
                return f"b{json.dumps(value[: self._most_characters].decode('latin-1'))}"
            case Timestamp():
                return f'timestamp("{write_timestamp(value)}")'
            case Duration():
                return f'duration("{write_duration(value)}")'
            case TypeValue():
                return value.name
            case BoolKey():
                return self.write(value.value)
            case list():
                return f"[{self._joined(level, [(item,) for item in value[: self._most_items]])}]"
            case dict():
                return f"{{{self._joined(level, list(value.items())[: self._most_items])}}}"
        return str(value)

    def _joined(self, level: int, rows: Sequence[tuple[Any, ...]]) -> str:
        if level == self._most_levels:
            return "…"
        return ", ".join(": ".join(self.write(part, level + 1) for part in row) for row in rows)


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
