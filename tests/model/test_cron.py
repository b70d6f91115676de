"""Cadences mean what cron means."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tape.errors import InvalidCadence
from tape.model.cron import Cron


@pytest.mark.parametrize(
    ("text", "after", "then"),
    [
        ("*/1 * * * *", "2026-06-11 10:00:30", "2026-06-11 10:01"),
        ("*/5 * * * *", "2026-06-11 10:05", "2026-06-11 10:10"),
        ("5/15 * * * *", "2026-06-11 10:21", "2026-06-11 10:35"),
        ("0 9-17/4 * * mon-fri", "2026-06-12 17:30", "2026-06-15 09:00"),
        ("30 2 29 feb *", "2026-06-11 10:00", "2028-02-29 02:30"),
        ("0 0 13 * 5", "2026-06-11 10:00", "2026-06-12 00:00"),
        ("0 0 1 1 *", "2026-12-31 23:59", "2027-01-01 00:00"),
        ("15,45 3 * * 7", "2026-06-11 10:00", "2026-06-14 03:15"),
        ("@hourly", "2026-06-11 10:00", "2026-06-11 11:00"),
        ("@WEEKLY", "2026-06-11 10:00", "2026-06-14 00:00"),
    ],
)
def test_the_next_time_is_the_next_that_fits(text: str, after: str, then: str) -> None:
    assert Cron.parse(text).next_after(datetime.fromisoformat(after)) == datetime.fromisoformat(then)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("* * * *", "has 4 fields"),
        ("60 * * * *", "takes 0 to 59"),
        ("* 24 * * *", "takes 0 to 23"),
        ("* * 0 * *", "takes 1 to 31"),
        ("* * * 13 *", "takes 1 to 12, or jan to dec"),
        ("* * * * 8", "takes 0 to 7, or sun to sat"),
        ("*/0 * * * *", "a step is a number of at least 1"),
        ("9-5 * * * *", "runs backwards"),
        ("0 0 30 2 *", "never comes"),
        ("a * * * *", "has 'a'"),
        ("1,,2 * * * *", "has ''"),
        ("² * * * *", "has '²'"),
        ("@sometimes", "has 1 fields"),
    ],
)
def test_what_is_no_cadence_is_said(text: str, reason: str) -> None:
    with pytest.raises(InvalidCadence, match=reason):
        Cron.parse(text)


@given(st.text("0123456789*/,- ", max_size=20))
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        Cron.parse(text)
    except InvalidCadence:
        pass


@given(
    st.integers(0, 59),
    st.integers(0, 23),
    st.datetimes(datetime(2024, 1, 1), datetime(2030, 1, 1)),
)
def test_a_daily_time_comes_within_a_day_and_fits(minute: int, hour: int, now: datetime) -> None:
    then = Cron.parse(f"{minute} {hour} * * *").next_after(now)
    assert then is not None
    assert (then.minute, then.hour, then.second) == (minute, hour, 0)
    assert 0 < (then - now).total_seconds() <= 86_400
