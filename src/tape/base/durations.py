"""Durations as people write them: `90s`, `30m`, `1h30m`, `3d`, a number of seconds, or a timedelta."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TypeAlias

from tape.errors import InvalidInput

Duration: TypeAlias = str | float | timedelta

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(ms|[smhdw])")
_TEXT = re.compile(rf"(?:{_PART.pattern})+")


def parse_duration_ms(name: str, value: Duration) -> int:
    """Milliseconds of a duration; `name` is what an error calls it. Raises InvalidInput unless it is above 0."""
    if isinstance(value, timedelta):
        milliseconds = value / timedelta(milliseconds=1)
    elif isinstance(value, str):
        if not _TEXT.fullmatch(value):
            raise InvalidInput(f"{name} {value[:40]!r} is not a duration such as 90s, 30m, 1h30m or 3d.")
        milliseconds = sum(float(number) * _UNITS_MS[unit] for number, unit in _PART.findall(value))
    else:
        milliseconds = float(value) * 1_000
    if not 1 <= milliseconds < 1 << 53:
        raise InvalidInput(f"{name} {value!r} must be at least 1 ms, and less than 285,000 years.")
    return round(milliseconds)
