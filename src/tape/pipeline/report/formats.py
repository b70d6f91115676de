"""Formats numbers, times and durations, and computes the marks of an axis."""

from __future__ import annotations

import datetime as dt
import math
from html import escape

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
# The marks of a logarithmic axis, in ms.
_MARKS = (1, 10, 100, SECOND, 10 * SECOND, MINUTE, 10 * MINUTE, HOUR, 10 * HOUR, 4 * DAY, 40 * DAY, 400 * DAY)
_TIME_STEPS = (
    *(SECOND, 5 * SECOND, 15 * SECOND, 30 * SECOND, MINUTE, 5 * MINUTE, 15 * MINUTE, 30 * MINUTE),
    *(HOUR, 2 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY, 91 * DAY, 364 * DAY),
)


def text(value: object) -> str:
    """Escape a value for HTML."""
    return escape(str(value), quote=True)


def duration(ms: float | None) -> str:
    """Format a duration in ms with a suitable unit."""
    if ms is None:
        return "–"
    if ms < SECOND:
        return f"{ms:.0f} ms"
    if ms < MINUTE and ms % SECOND == 0:
        return f"{ms // SECOND:.0f} s"
    if ms < 10 * SECOND:
        return f"{ms / SECOND:.2f} s"
    if ms < MINUTE:
        return f"{ms / SECOND:.1f} s"
    for unit, name, smaller, small_name in ((MINUTE, "min", SECOND, "s"), (HOUR, "h", MINUTE, "min")):
        if ms < unit * (60 if unit == MINUTE else 48):
            rest = int(ms % unit // smaller)
            return f"{int(ms // unit)} {name} {rest} {small_name}" if rest else f"{int(ms // unit)} {name}"
    return f"{ms / DAY:.1f} days"


def percent(part: int, whole: int) -> str:
    """Format a share; below 1 % with two decimals."""
    if not whole:
        return "–"
    share = 100 * part / whole
    return f"{share:.2f} %" if 0 < share < 1 else f"{share:.1f} %"


def size(count: int) -> str:
    """Format a number of bytes with a suitable unit."""
    value = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:,.0f} {unit}" if unit == "bytes" else f"{value:,.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} TiB"


def moment(ms: int, *, seconds: bool = True) -> str:
    """Format a time in UTC."""
    at = dt.datetime.fromtimestamp(ms / 1000, dt.UTC)
    return at.strftime("%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M")


def time_marks(since_ms: int, until_ms: int, most: int = 9) -> list[tuple[int, str]]:
    """Return the marks of a time axis with their labels."""
    span = max(until_ms - since_ms, 1)
    step = next((one for one in _TIME_STEPS if span / one <= most), _TIME_STEPS[-1])
    form = "%H:%M:%S" if step < MINUTE else "%H:%M" if step < DAY else "%-d %b" if step < 91 * DAY else "%b %Y"
    marks = []
    for at in range(-(-since_ms // step) * step, until_ms + 1, step):
        when = dt.datetime.fromtimestamp(at / 1000, dt.UTC)
        is_midnight = step < DAY and at % DAY == 0
        marks.append((at, when.strftime("%a %-d %b") if is_midnight else when.strftime(form)))
    return marks


def count_marks(most: float, wanted: int = 4) -> list[int]:
    """Return the marks of an axis of counts: round numbers from zero to at least the maximum."""
    raw = max(most, 1) / wanted
    power = 10 ** math.floor(math.log10(raw)) if raw >= 1 else 1
    step = next(int(factor * power) for factor in (1, 2, 5, 10) if factor * power >= raw)
    return list(range(0, math.ceil(max(most, 1) / step) * step + 1, step))


def duration_marks(least: float, most: float) -> list[int]:
    """Return the marks of a logarithmic axis of durations that covers minimum and maximum."""
    low = max((mark for mark in _MARKS if mark <= least), default=_MARKS[0])
    high = min((mark for mark in _MARKS if mark >= most), default=_MARKS[-1])
    return [mark for mark in _MARKS if low <= mark <= max(high, low * 10)]
