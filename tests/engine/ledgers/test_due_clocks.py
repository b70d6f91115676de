"""Times of gates and sleeps that were set while the clock was 30 hours ahead keep their distance once it is back."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tape.base.clock import now_ms
from tape.engine.ledgers import gate_times, gates, runs, sleep, timer_times, timers
from tape.engine.ledgers.gates import GateTerms
from tape.engine.ledgers.run_record import Run
from tape.engine.scheduler import Scheduler
from tape.model.ledger_states import RunStatus
from tape.store import Database, open_database

HOUR_MS = 3_600_000
AHEAD_MS = 30 * HOUR_MS


@pytest.fixture
async def database(store_url: str) -> AsyncIterator[Database]:
    async with open_database(store_url) as database:
        yield database


def set_clock(monkeypatch: pytest.MonkeyPatch, offset_ms: int) -> None:
    for module in ("gates", "gate_times", "sleep", "timers", "timer_times", "runs"):
        monkeypatch.setattr(f"tape.engine.ledgers.{module}.now_ms", lambda: now_ms() + offset_ms)
    monkeypatch.setattr("tape.engine.scheduler.now_ms", lambda: now_ms() + offset_ms)


async def begin(database: Database, name: str) -> str:
    wanted = Run("", "app", "u", "s", name, RunStatus.RUNNING)
    return (await database.write(lambda tx: runs.begin(tx, wanted, owner="", lease_ms=0)))[0].run_id


async def test_times_are_moved_back_with_the_clock(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, asleep = await begin(database, "asked"), await begin(database, "asleep")
    set_clock(monkeypatch, AHEAD_MS)
    terms = GateTerms(timeout_ms=2 * HOUR_MS, remind_after_ms=HOUR_MS)
    await database.write(lambda tx: gates.wait(tx, asked, "g", terms=terms))
    await database.write(lambda tx: sleep.sleep(tx, asleep, "s", HOUR_MS))
    set_clock(monkeypatch, 0)
    scheduler = Scheduler(database, (gate_times.GATES, timer_times.TIMERS))
    await scheduler.run_due()
    now = now_ms()
    signal = await database.read(lambda reader: gates.find(reader, asked, "g"))
    timer = await database.read(lambda reader: timers.find(reader, asleep, "s"))
    assert signal is not None
    assert timer is not None
    for moved, distance in (
        (signal.deadline_ms, 2 * HOUR_MS),
        (signal.remind_at_ms, HOUR_MS),
        (signal.next_at_ms, HOUR_MS),
        (timer.fire_at_ms, HOUR_MS),
        (timer.server_due_ms, HOUR_MS),
    ):
        assert now - 60_000 < moved - distance <= now
    assert not signal.delivered


async def test_one_gate_that_cannot_be_fired_does_not_stop_the_others(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, sound = await begin(database, "broken"), await begin(database, "sound")
    for run_id in (broken, sound):
        await database.write(lambda tx, run_id=run_id: gates.wait(tx, run_id, "g", terms=GateTerms(timeout_ms=1)))  # type: ignore[misc]
    find = runs.find
    monkeypatch.setattr(runs, "find", lambda tx, run_id: 1 / 0 if run_id == broken else find(tx, run_id))
    set_clock(monkeypatch, 1_000)
    done = await database.write(lambda tx: gate_times.fire_due(tx, 10))
    assert done == {"failed": 1, "timed_out": 1}
    assert not await database.write(lambda tx: gate_times.fire_due(tx, 10))
