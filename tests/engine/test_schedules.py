"""Schedules: cadence, jitter, overlap policy, catch-up window, and what they begin, on both databases."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tape.engine.ledgers import runs
from tape.engine.schedules import occurrences, registry
from tape.engine.schedules.occurrences import plan_occurrence
from tape.engine.schedules.schedule import Schedule
from tape.errors import InvalidCadence, InvalidInput, NotFound, ScheduleExists
from tape.model.cron import Cron
from tape.model.ledger_states import RunStatus
from tape.store import Database, open_database

MINUTE = 60_000
NOON = int(datetime(2027, 1, 5, 12, tzinfo=UTC).timestamp() * 1_000)


@pytest.fixture
async def database(store_url: str) -> AsyncIterator[Database]:
    async with open_database(store_url) as database:
        yield database


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the time of schedules and runs."""

    def set_time(ms: int) -> None:
        for module in ("schedules.registry", "schedules.occurrences", "ledgers.runs"):
            monkeypatch.setattr(f"tape.engine.{module}.now_ms", lambda: ms)

    set_time(NOON)
    return set_time


def schedule(**fields: Any) -> Schedule:
    return Schedule("", **({"name": "nightly", "cron": "* * * * *", "app_name": "app"} | fields))


async def create(database: Database, **fields: Any) -> Schedule:
    return await database.write(lambda tx: registry.create(tx, schedule(**fields)))


async def fire(database: Database) -> dict[str, int]:
    return dict(await database.write(lambda tx: occurrences.fire_due(tx, 10)))


async def get(database: Database) -> Schedule:
    return await database.read(lambda reader: registry.get(reader, "nightly"))


async def end_last(database: Database) -> None:
    run_id = (await get(database)).last_run_id
    await database.write(lambda tx: runs.end(tx, run_id, int(RunStatus.TERMINAL)))


async def test_a_due_schedule_begins_a_run_that_recovery_finds(
    database: Database, clock: Callable[[int], None]
) -> None:
    made = await create(database, input_json='{"n":1}', user_id="u")
    assert made.nominal_ms == NOON + MINUTE
    assert await fire(database) == {}
    clock(NOON + MINUTE + 5)
    assert await fire(database) == {"begun": 1}
    assert await fire(database) == {}
    [run] = await database.read(lambda reader: runs.list_recoverable(reader))
    assert (run.app_name, run.user_id, run.invocation_id) == ("app", "u", f"schedule-nightly-{NOON + MINUTE}")
    assert run.labels == {
        "tape.schedule": "nightly",
        "tape.scheduled_at_ms": str(NOON + MINUTE),
        "tape.input": '{"n":1}',
    }
    after = await get(database)
    assert (after.begun, after.last_run_id, after.nominal_ms) == (1, run.run_id, NOON + 2 * MINUTE)


@pytest.mark.parametrize(
    ("overlap", "outcome"),
    [("skip", "skipped"), ("buffer_one", "buffered"), ("allow", "begun"), ("cancel_other", "begun")],
)
async def test_the_overlap_policy_decides_while_a_run_is_open(
    database: Database, clock: Callable[[int], None], overlap: str, outcome: str
) -> None:
    await create(database, overlap=overlap)
    clock(NOON + MINUTE)
    await fire(database)
    first = (await get(database)).last_run_id
    clock(NOON + 2 * MINUTE)
    assert await fire(database) == {outcome: 1}
    status = (await database.read(lambda reader: runs.get(reader, first))).status
    assert status == (RunStatus.CANCELLED if overlap == "cancel_other" else RunStatus.RUNNING)
    assert (await get(database)).begun == (2 if outcome == "begun" else 1)


async def test_one_occurrence_is_buffered_and_begins_when_the_run_before_ends(
    database: Database, clock: Callable[[int], None]
) -> None:
    await create(database, overlap="buffer_one")
    for minute in (1, 2, 3):
        clock(NOON + minute * MINUTE)
        await fire(database)
    waiting = await get(database)
    assert (waiting.begun, waiting.buffered_ms, waiting.skipped) == (1, NOON + 2 * MINUTE, 1)
    clock(NOON + 3 * MINUTE + 1_500)
    assert await fire(database) == {"buffered": 1}
    await end_last(database)
    clock(NOON + 3 * MINUTE + 3_000)
    assert await fire(database) == {"begun": 1}
    after = await get(database)
    assert (after.last_nominal_ms, after.buffered_ms, after.begun) == (NOON + 2 * MINUTE, 0, 2)
    assert after.due_ms == NOON + 4 * MINUTE


async def test_occurrences_within_the_catch_up_window_are_made_up_and_others_are_missed(
    database: Database, clock: Callable[[int], None]
) -> None:
    await create(database, overlap="allow", catch_up_ms=3 * MINUTE)
    clock(NOON + 10 * MINUTE + 1)
    outcomes = [await fire(database) for _ in range(4)]
    assert outcomes == [{"begun": 1}, {"begun": 1}, {"begun": 1}, {}]
    after = await get(database)
    assert (after.missed, after.begun, after.nominal_ms) == (7, 3, NOON + 11 * MINUTE)


async def test_a_paused_schedule_begins_nothing_and_makes_nothing_up(
    database: Database, clock: Callable[[int], None]
) -> None:
    await create(database)
    await database.write(lambda tx: registry.pause(tx, "nightly", paused=True))
    clock(NOON + 10 * MINUTE)
    assert await fire(database) == {}
    _, run_id = await database.write(lambda tx: occurrences.trigger(tx, "nightly"))
    assert (await get(database)).last_run_id == run_id
    resumed = await database.write(lambda tx: registry.pause(tx, "nightly", paused=False))
    assert resumed.nominal_ms == NOON + 11 * MINUTE


async def test_a_schedule_of_a_playbook_that_is_missing_reports_it_and_goes_on(
    database: Database, clock: Callable[[int], None]
) -> None:
    await create(database, app_name="", playbook="reports/nightly")
    clock(NOON + MINUTE)
    assert await fire(database) == {"failed": 1}
    after = await get(database)
    assert "Playbook not found" in after.last_error
    assert after.nominal_ms == NOON + 2 * MINUTE


async def test_the_same_schedule_again_changes_nothing_and_another_needs_replace(
    database: Database, clock: Callable[[int], None]
) -> None:
    first = await create(database)
    assert await create(database) == first
    with pytest.raises(ScheduleExists):
        await create(database, cron="@hourly")
    replaced = await database.write(lambda tx: registry.create(tx, schedule(cron="@hourly"), replace=True))
    assert replaced.nominal_ms == NOON + 60 * MINUTE
    assert await database.write(lambda tx: registry.delete(tx, "nightly"))
    assert not await database.write(lambda tx: registry.delete(tx, "nightly"))
    with pytest.raises(NotFound):
        await get(database)


async def test_a_schedule_that_was_planned_while_the_clock_was_ahead_is_planned_again(
    database: Database, clock: Callable[[int], None]
) -> None:
    clock(NOON + 30 * 3_600_000)
    await create(database, cron="@hourly")
    clock(NOON)
    await database.write(occurrences.maintain)
    assert (await get(database)).due_ms == NOON + 60 * MINUTE


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, "name is empty"),
        ({"overlap": "queue"}, "overlap 'queue' must be one of"),
        ({"time_zone": "../../etc/passwd"}, "is not a time zone"),
        ({"time_zone": "Mars/Olympus"}, "is not a time zone"),
        ({"playbook": "p"}, "name one of them"),
        ({"app_name": ""}, "name one of them"),
        ({"app_name": "playbooks"}, "name the playbook"),
        ({"jitter_ms": -1}, "jitter_ms -1"),
        ({"catch_up_ms": 1 << 60}, "catch_up_ms"),
        ({"input_json": "{"}, "is not JSON"),
        ({"input_json": '"' + "x" * 20_000 + '"'}, "16384 bytes"),
    ],
)
async def test_what_cannot_be_is_refused_with_its_field(
    database: Database, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        await create(database, **fields)
    with pytest.raises(InvalidCadence):
        await create(database, cron="61 * * * *")


# ── properties ───────────────────────────────────────────────────────────────────────────────────

CRONS = st.sampled_from(
    ["* * * * *", "*/7 * * * *", "30 2 * * *", "0 * * * *", "15 1,2,3 * * *", "0 0 1 * *", "5 4 * * sun", "@weekly"]
)
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"])
TIMES = st.integers(min_value=NOON, max_value=NOON + 3 * 366 * 86_400_000)


@given(CRONS, ZONES, TIMES)
@settings(max_examples=60, deadline=None)
def test_the_next_time_is_later_and_the_first_that_matches(cron: str, zone: str, after: int) -> None:
    cadence = Cron.parse(cron)
    found = cadence.next_ms(after, ZoneInfo(zone))
    assert found > after
    assert cadence.next_ms(found - 1, ZoneInfo(zone)) == found
    assert cadence.next_ms(found, ZoneInfo(zone)) > found
    local = datetime.fromtimestamp(found / 1_000, ZoneInfo(zone))
    is_left_out = (
        datetime.fromtimestamp((found - 3 * 3_600_000) / 1_000, ZoneInfo(zone)).utcoffset() != local.utcoffset()
    )
    assert is_left_out or (local.minute in cadence.minutes and local.hour in cadence.hours)


@pytest.mark.parametrize(
    ("cron", "day", "expected"),
    [
        ("30 2 * * *", "2027-03-28", ["01:30"]),  # clocks are set forward at 02:00: 03:30 local time
        ("30 2 * * *", "2027-10-31", ["00:30"]),  # clocks are set back at 03:00: once
        ("0 * * * *", "2027-10-31", [f"{hour:02}:00" for hour in range(24)]),
    ],
)
def test_changes_of_clocks_leave_out_and_repeat_nothing(cron: str, day: str, expected: list[str]) -> None:
    start = int(datetime.fromisoformat(f"{day}T00:00+00:00").timestamp() * 1_000) - 1
    found, at = [], start
    while (at := Cron.parse(cron).next_ms(at, ZoneInfo("Europe/Berlin"))) < start + 86_400_000:
        found.append(f"{datetime.fromtimestamp(at / 1_000, UTC):%H:%M}")
    assert found == expected


@given(CRONS, ZONES, TIMES, st.integers(0, 30 * 86_400_000), st.integers(0, 86_400_000), st.integers(0, 3_600_000))
@settings(max_examples=60, deadline=None)
def test_what_is_planned_lies_in_the_catch_up_window_or_ahead(
    cron: str, zone: str, created: int, gap: int, catch_up: int, jitter: int
) -> None:
    made = schedule(cron=cron, time_zone=zone, catch_up_ms=catch_up, jitter_ms=jitter).planned(created, created)
    now = created + gap
    planned, missed = plan_occurrence(made, now)
    assert planned.nominal_ms >= now - catch_up or planned.due_ms > now
    assert (missed > 0) == (planned.nominal_ms != made.nominal_ms)
    assert planned.nominal_ms <= planned.due_ms < planned.nominal_ms + max(jitter, 1)
    assert plan_occurrence(planned, now) == (planned, 0)


@given(st.lists(st.integers(1, 5 * MINUTE), max_size=25), st.integers(0, 4 * MINUTE))
@settings(max_examples=60, deadline=None)
def test_every_occurrence_is_begun_or_missed_once(waits: list[int], catch_up: int) -> None:
    made = schedule(catch_up_ms=catch_up).planned(NOON, NOON)
    now, handled = NOON, 0
    for wait in waits:
        now += wait
        while made.due_ms <= now:
            made, missed = plan_occurrence(made, now)
            handled += missed
            if made.due_ms <= now:
                made = made.planned(made.nominal_ms, now)
                handled += 1
    assert handled == (now - NOON) // MINUTE
