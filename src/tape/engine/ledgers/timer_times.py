"""What a server does about timers when their time comes. Timers of other kinds are left to the clients that set them.

`wake` makes a parked run runnable, `gate_timeout` lets a gate time out, `reconcile` is reported on the journal. Clients
see these timers by ListDueTimers all the same: what a client claims does not change what the server does.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from tape.base.clock import latest_ms, now_ms
from tape.base.telemetry.tracing import NO_TRACE
from tape.engine.ledgers import gates, runs, timers
from tape.engine.ledgers.run_record import Run
from tape.engine.ledgers.runs import ENDED
from tape.engine.ledgers.timers import GATE_TIMEOUT, WAKE, Timer
from tape.engine.scheduler import DueWork, fire_each
from tape.model.ledger_states import RunStatus
from tape.store import Reader, Transaction
from tape.store.records import columns, load_all, store

_COLUMNS = columns(Timer)
_KEYS = ("run_id", "timer_id")
_ENDED = ", ".join(str(int(status)) for status in sorted(ENDED))
# A wake of a run that is being executed waits for this long.
RUNNING_MS = 2_000
# A timer that the server has fired is kept for this long after the end of its run, and this many are removed at once.
KEEP_MS = 24 * 3_600_000
MAX_REMOVED = 1_000


def next_time(reader: Reader) -> int:
    """The earliest time at which a timer needs the server; 0 if there is none."""
    row = reader.one("SELECT min(server_due_ms) FROM tape_timers WHERE server_due_ms > 0")
    return int(row[0] or 0) if row else 0


def fire_due(tx: Transaction, limit: int) -> Counter[str]:
    """Fire timers of the server's kinds, longest due first; how many, by outcome."""
    now = now_ms()
    rows = tx.query(
        f"SELECT {_COLUMNS} FROM tape_timers WHERE server_due_ms > 0 AND server_due_ms <= ?"
        " ORDER BY server_due_ms LIMIT ?",
        now,
        limit,
    )
    due = load_all(Timer, rows)
    return fire_each(tx, due, lambda timer: _fire(tx, timer, now), lambda timer, at: _postpone(tx, timer, at))


def _fire(tx: Transaction, timer: Timer, now: int) -> str:
    run = runs.find(tx, timer.run_id)
    if run is not None and run.status == RunStatus.RUNNING and timer.kind == WAKE and not timer.set_at_ms:
        # The run may be about to park: a wake that came before that would be lost.
        store(tx, "tape_timers", _KEYS, msgspec.structs.replace(timer, server_due_ms=now + RUNNING_MS))
        return "postponed"
    store(tx, "tape_timers", _KEYS, msgspec.structs.replace(timer, server_due_ms=0, server_fired_at_ms=now))
    if run is None:
        return "over"
    if run.status in ENDED:
        outcome = "over"
    elif timer.kind == WAKE:
        outcome = _wake(tx, run, timer)
    elif timer.kind == GATE_TIMEOUT:
        outcome = _time_out(tx, run, timer, now)
    else:
        outcome = "reported"
    timers.journal(tx, run, timer, "fired", {"outcome": outcome, "late_ms": now - timer.fire_at_ms}, NO_TRACE)
    return outcome


def _wake(tx: Transaction, run: Run, timer: Timer) -> str:
    is_asleep = run.waiting_on_gate == f"timer:{timer.timer_id}" if timer.set_at_ms else True
    if run.status != RunStatus.WAITING or not is_asleep:
        return "awake"
    tx.execute(
        "UPDATE tape_runs SET status = ?, waiting_on_gate = '' WHERE run_id = ?", int(RunStatus.RUNNABLE), run.run_id
    )
    return "woken"


def _time_out(tx: Transaction, run: Run, timer: Timer, now: int) -> str:
    signal = gates.find(tx, run.run_id, _gate_of(timer) or run.waiting_on_gate)
    if signal is None or signal.delivered:
        return "answered" if signal else "no_gate"
    gates.expire(tx, run, signal, now)
    return "timed_out"


def _gate_of(timer: Timer) -> str:
    """The gate that a timer names: `gate` or `gate_name` of its payload; empty if it names none."""
    try:
        payload = msgspec.json.decode(timer.payload_json or "{}")
    except (msgspec.MsgspecError, RecursionError):
        return ""
    named = payload.get("gate") or payload.get("gate_name") if isinstance(payload, dict) else ""
    return named if isinstance(named, str) else ""


def _postpone(tx: Transaction, timer: Timer, at_ms: int) -> None:
    store(tx, "tape_timers", _KEYS, msgspec.structs.replace(timer, server_due_ms=at_ms))


def maintain(tx: Transaction) -> None:
    """Correct the times of sleeping runs after a clock was ahead, and remove fired timers of runs that ended."""
    now = now_ms()
    rows = tx.query(f"SELECT {_COLUMNS} FROM tape_timers WHERE server_due_ms > 0 AND set_at_ms > ?", latest_ms(now))
    for timer in load_all(Timer, rows):
        due = timer.fire_at_ms - (timer.set_at_ms - now)
        moved = msgspec.structs.replace(timer, fire_at_ms=due, server_due_ms=due, set_at_ms=now)
        store(tx, "tape_timers", _KEYS, moved)
    tx.execute(
        "DELETE FROM tape_timers WHERE (run_id, timer_id) IN ("
        "SELECT t.run_id, t.timer_id FROM tape_timers t JOIN tape_runs r ON r.run_id = t.run_id"
        " WHERE t.server_fired_at_ms > 0 AND t.server_fired_at_ms < ?"
        f" AND r.status IN ({_ENDED}) AND r.ended_at_ms < ? LIMIT ?)",
        now - KEEP_MS,
        now - KEEP_MS,
        MAX_REMOVED,
    )


TIMERS = DueWork("timers", next_time, fire_due, maintain)
