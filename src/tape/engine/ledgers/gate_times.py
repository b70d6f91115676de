"""What a server does about gates when their time comes: reminders, escalations, and deadlines."""

from __future__ import annotations

from collections import Counter

import msgspec

from tape.base.clock import latest_ms, now_ms
from tape.engine.ledgers import gates, runs
from tape.engine.ledgers.gates import GateSignal
from tape.engine.ledgers.runs import ENDED
from tape.engine.scheduler import DueWork, fire_each
from tape.store import Reader, Transaction
from tape.store.records import columns, load_all, store

_COLUMNS = columns(GateSignal)
_KEYS = ("run_id", "gate_name")
# Gates that are closed at once.
MAX_CLOSED = 1_000
_TIMES = ("deadline_ms", "remind_at_ms", "escalate_at_ms")


def next_time(reader: Reader) -> int:
    """The earliest time at which a gate needs the server; 0 if there is none."""
    row = reader.one("SELECT min(next_at_ms) FROM tape_signals WHERE next_at_ms > 0")
    return int(row[0] or 0) if row else 0


def fire_due(tx: Transaction, limit: int) -> Counter[str]:
    """Act on gates whose time has come, longest due first; how many were reminded, escalated, timed out or closed."""
    now = now_ms()
    rows = tx.query(
        f"SELECT {_COLUMNS} FROM tape_signals WHERE next_at_ms > 0 AND next_at_ms <= ? ORDER BY next_at_ms LIMIT ?",
        now,
        limit,
    )
    return fire_each(
        tx,
        load_all(GateSignal, rows),
        lambda signal: _fire(tx, signal, now),
        lambda signal, at: _postpone(tx, signal, at),
    )


def _postpone(tx: Transaction, signal: GateSignal, at_ms: int) -> None:
    store(tx, "tape_signals", _KEYS, msgspec.structs.replace(signal, next_at_ms=at_ms))


def _fire(tx: Transaction, signal: GateSignal, now: int) -> str:
    run = runs.find(tx, signal.run_id)
    if run is None or run.status in ENDED:
        store(tx, "tape_signals", _KEYS, msgspec.structs.replace(signal, closed=True, next_at_ms=0))
        return "closed"
    if 0 < signal.deadline_ms <= now:
        gates.expire(tx, run, signal, now)
        return "timed_out"
    # Of both at once, the earlier one comes first.
    if signal.remind_at_ms and not signal.reminded_at_ms and signal.remind_at_ms <= (_escalates_at(signal) or now):
        verb, signal = "reminded", msgspec.structs.replace(signal, reminded_at_ms=now)
    else:
        verb, signal = "escalated", msgspec.structs.replace(signal, escalated_at_ms=now)
    store(tx, "tape_signals", _KEYS, msgspec.structs.replace(signal, next_at_ms=signal.following_ms()))
    gates.journal(tx, run, signal, verb, gates.describe(signal))
    return verb


def _escalates_at(signal: GateSignal) -> int:
    return 0 if signal.escalated_at_ms else signal.escalate_at_ms


def correct_times(tx: Transaction) -> int:
    """Move the times of gates that were reached while the clock was ahead, so that each keeps its distance from now.

    Returns how many were moved.
    """
    now = now_ms()
    rows = tx.query(f"SELECT {_COLUMNS} FROM tape_signals WHERE next_at_ms > 0 AND created_at_ms > ?", latest_ms(now))
    for signal in load_all(GateSignal, rows):
        ahead = signal.created_at_ms - now
        moved = {name: value - ahead for name in _TIMES if (value := getattr(signal, name))}
        signal = msgspec.structs.replace(signal, created_at_ms=now, **moved)
        store(tx, "tape_signals", _KEYS, msgspec.structs.replace(signal, next_at_ms=signal.following_ms()))
    return len(rows)


def close_ended(tx: Transaction, limit: int) -> int:
    """Close gates without an answer whose runs have ended, so that lists of waiting gates need not pass over them."""
    ended = ", ".join(str(int(status)) for status in sorted(ENDED))
    return tx.execute(
        "UPDATE tape_signals SET closed = 1, next_at_ms = 0 WHERE (run_id, gate_name) IN ("
        "SELECT s.run_id, s.gate_name FROM tape_signals s JOIN tape_runs r ON r.run_id = s.run_id"
        f" WHERE s.delivered = 0 AND s.closed = 0 AND r.status IN ({ended}) LIMIT ?)",
        limit,
    )


def maintain(tx: Transaction) -> None:
    """Correct times, and close gates of ended runs."""
    correct_times(tx)
    close_ended(tx, MAX_CLOSED)


GATES = DueWork("gates", next_time, fire_due, maintain)
