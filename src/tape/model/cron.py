"""Cron expressions: five fields, and the next time that matches, in a time zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import NamedTuple

from tape.errors import InvalidCadence

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_SHORT = {
    "@yearly": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@hourly": "0 * * * *",
}
# Every possible day matches within eight years: leap days are at most eight years apart.
_FAR = timedelta(days=366 * 8 + 2)
# The largest change of clocks that a time zone of today makes, and some more.
_CHANGE = timedelta(hours=3)


class _Field(NamedTuple):
    name: str
    least: int
    most: int
    words: tuple[str, ...] = ()


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of week", 0, 7, _DAYS),
)


class Cron(NamedTuple):
    """A cadence. If day of month and weekday are both restricted, a day matches by either, as in cron."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool
    any_weekday: bool

    @classmethod
    def parse(cls, text: str) -> Cron:
        """Parse `minute hour day month weekday`, or @yearly, @monthly, @weekly, @daily, @hourly."""
        parts = _SHORT.get(text.strip().lower(), text).split()
        if len(parts) != len(_FIELDS):
            raise InvalidCadence(f"{text!r} has {len(parts)} fields; cron has five: minute hour day month weekday")
        minutes, hours, days, months, weekdays = map(_values, _FIELDS, parts)
        weekdays = frozenset(day % 7 for day in weekdays)
        cron = cls(minutes, hours, days, months, weekdays, parts[2].startswith("*"), parts[4].startswith("*"))
        if cron.next_after(datetime(2024, 1, 1)) is None:
            raise InvalidCadence(f"{text!r} never comes: no such month has such a day")
        return cron

    def next_after(self, time: datetime) -> datetime | None:
        """The first matching minute after a time, in the time zone of that time."""
        at = (time + timedelta(minutes=1)).replace(second=0, microsecond=0)
        end = at + _FAR
        while at < end:
            if at.month not in self.months or not self._fits_day(at):
                at = (at + timedelta(days=1)).replace(hour=0, minute=0)
            elif at.hour not in self.hours:
                at = (at + timedelta(hours=1)).replace(minute=0)
            elif at.minute not in self.minutes:
                at += timedelta(minutes=1)
            else:
                return at
        return None

    def next_ms(self, after_ms: int, zone: tzinfo = UTC) -> int:
        """The first matching time after a time, both in milliseconds since 1970, by the clocks of a time zone.

        When clocks are set forward, a time that is left out comes as much later. When they are set back, a cadence of
        every hour goes on by real time, and a time in certain hours comes once, the first time.
        """
        after = datetime.fromtimestamp(after_ms / 1_000, UTC)
        local = after.astimezone(zone).replace(tzinfo=None)
        folds = (0, 1) if len(self.hours) == _FIELDS[1].most + 1 else (0,)
        found: datetime | None = None
        # A local time within the largest change of clocks may lie on either side of `after`.
        at = self.next_after(local - _CHANGE)
        while at is not None and (found is None or at <= local + _CHANGE):
            for fold in folds:
                moment = at.replace(tzinfo=zone, fold=fold).astimezone(UTC)
                if moment > after and (found is None or moment < found):
                    found = moment
            at = self.next_after(at)
        assert found is not None, "a cadence that can be parsed has a next time"
        return round(found.timestamp() * 1_000)

    def _fits_day(self, at: datetime) -> bool:
        by_date, by_weekday = at.day in self.days, at.isoweekday() % 7 in self.weekdays
        if self.any_day or self.any_weekday:
            return by_date and by_weekday
        return by_date or by_weekday


def _values(field: _Field, text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, slash, step = part.partition("/")
        if slash and not re.fullmatch(r"[1-9][0-9]{0,3}", step):
            raise InvalidCadence(f"the {field.name} {text!r} has the step {step!r}; a step is a number of at least 1")
        first, dash, last = span.partition("-")
        if span == "*":
            low, high = field.least, field.most
        else:
            low = _number(field, first, text)
            # `5/15` is every 15 from 5 on.
            high = _number(field, last, text) if dash else field.most if slash else low
        if low > high:
            raise InvalidCadence(f"the {field.name} {text!r} has the range {span!r}, which runs backwards")
        found.update(range(low, high + 1, int(step or 1)))
    return frozenset(found)


def _number(field: _Field, word: str, text: str) -> int:
    if word.lower() in field.words:
        return field.words.index(word.lower()) + field.least
    if re.fullmatch(r"[0-9]{1,4}", word) and field.least <= int(word) <= field.most:
        return int(word)
    raise InvalidCadence(
        f"the {field.name} {text!r} has {word!r}; it takes {field.least} to {field.most}"
        + (f", or {field.words[0]} to {field.words[-1]}" if field.words else "")
    )
