"""Timestamps and durations: reading, writing, and their parts in a time zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import resources
from zoneinfo import ZoneInfo

from tape.cel.values import Duration, Fault, Timestamp

SECOND = 1_000_000_000
DAY = 86_400
# The first and the last nanosecond of the years 1 to 9999.
FIRST = -62_135_596_800 * SECOND
LAST = 253_402_300_800 * SECOND - 1
# Ten thousand years, which is as far as a duration can be written.
_LONGEST = 315_576_000_001 * SECOND - 1

_RFC3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
)
_SPAN = re.compile(r"([0-9]*)(?:\.([0-9]*))?(h|ms|m|us|s|ns)")
_UNITS = {"h": 3600 * SECOND, "m": 60 * SECOND, "s": SECOND, "ms": 1_000_000, "us": 1_000, "ns": 1}
_OFFSET = re.compile(r"([+-]?)([0-9]{1,2}):([0-9]{1,2})")
_LONGEST_TEXT = 64
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read_timestamp(text: str) -> Timestamp:
    """An RFC 3339 text as a timestamp; digits beyond nanoseconds are cut off."""
    found = _RFC3339.fullmatch(text) if len(text) <= _LONGEST_TEXT else None
    if found is None:
        raise Fault(f"{text[:40]!r} is no timestamp such as 2026-01-31T12:00:00Z")
    year, month, day, hour, minute, second = map(int, found.group(1, 2, 3, 4, 5, 6))
    try:
        # A leap second, written :60, is the first of the next minute.
        moment = datetime(year, month, day, hour, minute, min(second, 59), tzinfo=UTC)
    except ValueError:
        raise Fault(f"{text[:40]!r} is no date and time that exists") from None
    if second > 60:
        raise Fault(f"{text[:40]!r} is no date and time that exists")
    seconds = (moment - _EPOCH) // timedelta(seconds=1) + (second == 60)
    if found[8]:
        offset_hour, offset_minute = int(found[9]), int(found[10])
        if offset_hour > 23 or offset_minute > 59:
            raise Fault(f"{text[:40]!r} has an offset that no clock has")
        seconds -= (offset_hour * 3600 + offset_minute * 60) * (-1 if found[8] == "-" else 1)
    nanos = seconds * SECOND + int((found[7] or "0")[:9].ljust(9, "0"))
    if not FIRST <= nanos <= LAST:
        raise Fault("timestamp overflow")
    return Timestamp(nanos)


def timestamp_of_seconds(seconds: int) -> Timestamp:
    """The moment so many seconds after 1970."""
    nanos = seconds * SECOND
    if not FIRST <= nanos <= LAST:
        raise Fault("timestamp overflow")
    return Timestamp(nanos)


def write_timestamp(moment: Timestamp) -> str:
    """RFC 3339 in UTC with as many digits as it needs, in groups of three."""
    seconds, nanos = divmod(moment.nanos, SECOND)
    shown = _EPOCH + timedelta(seconds=seconds)
    return f"{shown.year:04}-{shown:%m-%dT%H:%M:%S}{_fraction(nanos)}Z"


def read_duration(text: str) -> Duration:
    """A text such as `1h30m` or `-1.5s`, with the units h, m, s, ms, us and ns."""
    body = text[1:] if text[:1] in ("+", "-") else text
    nanos, position = 0, 0
    while position < len(body):
        found = _SPAN.match(body, position)
        if found is None or not (found[1] or found[2]) or len(found[1]) > 18:
            if body == "0":
                break
            raise Fault(f"{text[:40]!r} is no duration such as 1h30m or 1.5s")
        unit = _UNITS[found[3]]
        fraction = (found[2] or "")[:18]
        nanos += int(found[1] or "0") * unit + (int(fraction) * unit // 10 ** len(fraction) if fraction else 0)
        position = found.end()
    if not body:
        raise Fault("an empty text is no duration")
    if nanos > _LONGEST:
        raise Fault("a duration has at most 315576000000 seconds")
    return Duration(-nanos if text[0] == "-" else nanos)


def write_duration(span: Duration) -> str:
    """Seconds with as many digits as they need, in groups of three."""
    seconds, nanos = divmod(abs(span.nanos), SECOND)
    return f"{'-' if span.nanos < 0 else ''}{seconds}{_fraction(nanos)}s"


def _fraction(nanos: int) -> str:
    if not nanos:
        return ""
    digits = f"{nanos:09}"
    return "." + (digits[:3] if digits.endswith("000000") else digits[:6] if digits.endswith("000") else digits)


# ── parts of a timestamp ─────────────────────────────────────────────────────────────────────────


def local_seconds(moment: Timestamp, zone: str) -> int:
    """Seconds since 1970 as the clocks of a zone count them. The zone is an IANA name or an offset."""
    seconds = moment.nanos // SECOND
    if not zone or zone == "UTC":
        return seconds
    if found := _OFFSET.fullmatch(zone):
        offset = int(found[2]) * 3600 + int(found[3]) * 60
        return seconds + (-offset if found[1] == "-" else offset)
    # Python's calendar ends where CEL's does; a day away from the edge the offset is the same.
    inside = min(max(seconds, FIRST // SECOND + DAY), LAST // SECOND - DAY)
    offset_now = (_EPOCH + timedelta(seconds=inside)).astimezone(_zone(zone)).utcoffset()
    assert offset_now is not None
    return seconds + offset_now // timedelta(seconds=1)


@cache
def _zone(name: str) -> ZoneInfo:
    if name not in _known_zones():
        raise Fault(f"{name[:40]!r} is no time zone; use a name such as Europe/Vienna or an offset such as +01:00")
    return ZoneInfo(name)


@cache
def _known_zones() -> frozenset[str]:
    """The names of IANA's zones, the same on every machine; looking for other files would take long."""
    return frozenset(resources.files("tzdata").joinpath("zones").read_text(encoding="utf-8").split())


def civil(days: int) -> tuple[int, int, int]:
    """Year, month from 1 and day from 1 of a day counted from 1970, in the Gregorian calendar."""
    # Years that begin in March put the leap day last; eras of 400 years repeat.
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    return era * 400 + year_of_era + (month <= 2), month, day_of_year - (153 * shifted + 2) // 5 + 1


def _day_of_year(days: int) -> int:
    year = civil(days)[0]
    leap_days = (year - 1) // 4 - (year - 1) // 100 + (year - 1) // 400
    return days - (365 * (year - 1) + leap_days - 719_162)


def full_year(moment: Timestamp, zone: str = "") -> int:
    """`getFullYear`."""
    return civil(local_seconds(moment, zone) // DAY)[0]


def month(moment: Timestamp, zone: str = "") -> int:
    """From 0."""
    return civil(local_seconds(moment, zone) // DAY)[1] - 1


def day_of_month_from_1(moment: Timestamp, zone: str = "") -> int:
    """`getDate`."""
    return civil(local_seconds(moment, zone) // DAY)[2]


def day_of_month_from_0(moment: Timestamp, zone: str = "") -> int:
    """`getDayOfMonth`."""
    return civil(local_seconds(moment, zone) // DAY)[2] - 1


def day_of_week(moment: Timestamp, zone: str = "") -> int:
    """From 0, which is Sunday; 1970 began on a Thursday."""
    return (local_seconds(moment, zone) // DAY + 4) % 7


def day_of_year(moment: Timestamp, zone: str = "") -> int:
    """From 0."""
    return _day_of_year(local_seconds(moment, zone) // DAY)


def hours(moment: Timestamp, zone: str = "") -> int:
    """`getHours`, 0 to 23."""
    return local_seconds(moment, zone) % DAY // 3600


def minutes(moment: Timestamp, zone: str = "") -> int:
    """`getMinutes`, 0 to 59."""
    return local_seconds(moment, zone) % 3600 // 60


def seconds(moment: Timestamp, zone: str = "") -> int:
    """`getSeconds`, 0 to 59."""
    return local_seconds(moment, zone) % 60


def milliseconds(moment: Timestamp, zone: str = "") -> int:
    """Of the second."""
    local_seconds(moment, zone)
    return moment.nanos % SECOND // 1_000_000


# ── a duration in units; what does not fill one is cut off ───────────────────────────────────────


def _whole(nanos: int, unit: int) -> int:
    return nanos // unit if nanos >= 0 else -(-nanos // unit)


def duration_hours(span: Duration) -> int:
    """Whole hours."""
    return _whole(span.nanos, 3600 * SECOND)


def duration_minutes(span: Duration) -> int:
    """Whole minutes."""
    return _whole(span.nanos, 60 * SECOND)


def duration_seconds(span: Duration) -> int:
    """Whole seconds."""
    return _whole(span.nanos, SECOND)


def duration_milliseconds(span: Duration) -> int:
    """Of the second, as Google's implementation has it."""
    whole = _whole(span.nanos, 1_000_000)
    return whole % 1000 if whole >= 0 else -(-whole % 1000)
