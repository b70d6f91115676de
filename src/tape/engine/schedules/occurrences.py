"""What a server does when a schedule is due: begin a run, or not, as its overlap policy and catch-up window say."""

from __future__ import annotations

from collections import Counter

import msgspec

from tape.base.clock import latest_ms, now_ms
from tape.base.telemetry.tracing import NO_TRACE
from tape.engine.executions.execute import ExecuteRequest, execute
from tape.engine.ledgers import runs
from tape.engine.ledgers.run_record import Run
from tape.engine.ledgers.runs import ENDED
from tape.engine.scheduler import DueWork, fire_each
from tape.engine.schedules.registry import COLUMNS, KEYS, get, journal
from tape.engine.schedules.schedule import Schedule
from tape.errors import TapeError
from tape.model.ledger_states import RunStatus
from tape.model.tenant_names import prefix_of, tenant_of
from tape.store import Reader, Transaction
from tape.store.records import load_all, store

OWNER = "scheduler"
# An occurrence that waits for the run before it is looked at again after this time.
BUFFER_POLL_MS = 1_000
# Occurrences outside of the catch-up window that are counted one by one.
MAX_MISSED = 1_000


def next_time(reader: Reader) -> int:
    """The earliest time at which a schedule is due; 0 if there is none."""
    row = reader.one("SELECT min(due_ms) FROM tape_schedules WHERE due_ms > 0")
    return int(row[0] or 0) if row else 0


def fire_due(tx: Transaction, limit: int) -> Counter[str]:
    """Handle one occurrence of each due schedule, longest due first; how many, by outcome."""
    now = now_ms()
    rows = tx.query(
        f"SELECT {COLUMNS} FROM tape_schedules WHERE due_ms > 0 AND due_ms <= ? ORDER BY due_ms LIMIT ?", now, limit
    )
    due = load_all(Schedule, rows)
    return fire_each(tx, due, lambda each: _fire(tx, each, now), lambda each, at: _postpone(tx, each, at))


def trigger(tx: Transaction, name: str) -> tuple[Schedule, str]:
    """Begin a run of a schedule now, also of a paused one; the overlap policy is not looked at. Its id is returned."""
    schedule, now = get(tx, name), now_ms()
    run_id = _begin(tx, schedule, now)
    schedule = msgspec.structs.replace(schedule, last_run_id=run_id, last_fired_at_ms=now, begun=schedule.begun + 1)
    store(tx, "tape_schedules", KEYS, schedule)
    journal(tx, schedule, "fired", {"begun_run_id": run_id, "scheduled_at_ms": now, "triggered": True})
    return schedule, run_id


def plan_occurrence(schedule: Schedule, now: int) -> tuple[Schedule, int]:
    """The schedule at its next occurrence within the catch-up window, and how many before that were missed.

    A buffered occurrence is kept however old it is.
    """
    missed = 0
    earliest = now - schedule.catch_up_ms
    while schedule.nominal_ms < earliest and missed < MAX_MISSED and schedule.with_jitter(schedule.nominal_ms) <= now:
        buffered = schedule.buffered_ms
        schedule = msgspec.structs.replace(schedule.planned(schedule.nominal_ms, now), buffered_ms=buffered)
        missed += 1
    if schedule.nominal_ms < earliest:
        buffered = schedule.buffered_ms
        schedule = msgspec.structs.replace(schedule.planned(earliest, now), buffered_ms=buffered)
    return schedule, missed


def _fire(tx: Transaction, schedule: Schedule, now: int) -> str:
    schedule, missed = plan_occurrence(schedule, now)
    if missed:
        schedule = msgspec.structs.replace(schedule, missed=schedule.missed + missed)
        journal(tx, schedule, "missed", {"count": missed, "catch_up_ms": schedule.catch_up_ms})
    nominal = schedule.buffered_ms or schedule.nominal_ms
    is_due = schedule.with_jitter(schedule.nominal_ms) <= now
    if not schedule.buffered_ms and not is_due:
        store(tx, "tape_schedules", KEYS, schedule)
        return "missed"
    previous = runs.find(tx, schedule.last_run_id) if schedule.last_run_id and schedule.overlap != "allow" else None
    is_open = previous is not None and previous.status not in ENDED
    if is_open and schedule.overlap == "buffer_one" and schedule.buffered_ms and not is_due:
        _save(tx, msgspec.structs.replace(schedule, due_ms=_look_again_ms(schedule, now)))
        return "buffered"
    if is_open and schedule.overlap in ("skip", "buffer_one"):
        return _not_now(tx, schedule, now)
    if is_open and previous is not None:
        detail = msgspec.json.encode({"reason": f"the schedule {schedule.name!r} begins the next run"}).decode()
        runs.end(tx, previous.run_id, int(RunStatus.CANCELLED), detail_json=detail)
    was_buffered = schedule.buffered_ms > 0
    # A buffered occurrence leaves the one that is due for the next look.
    after = schedule if was_buffered else schedule.planned(nominal, now)
    if was_buffered:
        due = schedule.with_jitter(schedule.nominal_ms)
        after = msgspec.structs.replace(schedule, buffered_ms=0, due_ms=due)
    try:
        with tx.savepoint():
            run_id = _begin(tx, schedule, nominal)
    except TapeError as error:
        after = msgspec.structs.replace(after, last_nominal_ms=nominal, last_error=f"{error.code}: {error}"[:500])
        _save(tx, after)
        journal(tx, after, "failed", {"scheduled_at_ms": nominal, "error": after.last_error})
        return "failed"
    after = msgspec.structs.replace(
        after,
        last_nominal_ms=nominal,
        last_fired_at_ms=now,
        last_run_id=run_id,
        last_error="",
        begun=schedule.begun + 1,
    )
    _save(tx, after)
    journal(tx, after, "fired", {"begun_run_id": run_id, "scheduled_at_ms": nominal, "late_ms": now - nominal})
    return "begun"


def _not_now(tx: Transaction, schedule: Schedule, now: int) -> str:
    """The run before is open: skip the occurrence, or let it wait if it is the only one."""
    nominal = schedule.nominal_ms
    can_wait = schedule.overlap == "buffer_one" and not schedule.buffered_ms
    kept = nominal if can_wait else schedule.buffered_ms
    after = msgspec.structs.replace(schedule.planned(nominal, now), buffered_ms=kept)
    if kept:
        after = msgspec.structs.replace(after, due_ms=_look_again_ms(after, now))
    if not can_wait:
        after = msgspec.structs.replace(after, skipped=schedule.skipped + 1)
    _save(tx, after)
    verb = "buffered" if can_wait else "skipped"
    journal(tx, after, verb, {"scheduled_at_ms": nominal, "open_run_id": schedule.last_run_id})
    return verb


def _look_again_ms(schedule: Schedule, now: int) -> int:
    return min(now + BUFFER_POLL_MS, schedule.with_jitter(schedule.nominal_ms))


def _begin(tx: Transaction, schedule: Schedule, nominal: int) -> str:
    """Begin the run of an occurrence: a run that recovery workers resume, or an execution of a playbook."""
    if schedule.playbook:
        payload = msgspec.json.decode(schedule.input_json or "{}", type=dict)
        tenant = tenant_of(schedule.playbook)
        request = ExecuteRequest(path=schedule.playbook, payload=payload, tenant=tenant, prefix=prefix_of(tenant))
        return str(execute(tx, request).execution_id)
    labels = {
        "tape.schedule": schedule.name,
        "tape.scheduled_at_ms": str(nominal),
        "tape.input": schedule.input_json or "{}",
    }
    wanted = Run(
        run_id="",
        app_name=schedule.app_name,
        user_id=schedule.user_id,
        session_id=schedule.session_id,
        invocation_id=f"schedule-{schedule.name}-{nominal}",
        status=RunStatus.RUNNING,
        labels_json=msgspec.json.encode(labels).decode(),
        tenant_id=schedule.tenant,
        tenant=schedule.tenant or schedule.app_name,
    )
    about = {"schedule": schedule.name, "scheduled_at_ms": nominal}
    # The lease is expired from the start, so a recovery worker resumes the run at once.
    run, _ = runs.begin(tx, wanted, owner=OWNER, lease_ms=0, trace=NO_TRACE, extra_payload=about, is_recoverable=True)
    return run.run_id


def _save(tx: Transaction, schedule: Schedule) -> None:
    store(tx, "tape_schedules", KEYS, schedule)


def _postpone(tx: Transaction, schedule: Schedule, at_ms: int) -> None:
    _save(tx, msgspec.structs.replace(schedule, due_ms=at_ms))


def maintain(tx: Transaction) -> None:
    """Plan schedules again that were planned while the clock was ahead."""
    now = now_ms()
    rows = tx.query(f"SELECT {COLUMNS} FROM tape_schedules WHERE due_ms > 0 AND planned_at_ms > ?", latest_ms(now))
    for schedule in load_all(Schedule, rows):
        _save(tx, schedule.planned(now, now))


SCHEDULES = DueWork("schedules", next_time, fire_due, maintain)
