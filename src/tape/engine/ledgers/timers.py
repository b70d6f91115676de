"""Timers: durable deadlines of runs.

A claim marks a timer as fired, so no other worker gets it. A leased timer is redelivered unless it is completed
before the lease expires. Timers of the kinds below are fired by the server too (`timer_times.py`) and are on the
journal; whether a client has claimed them does not matter for that.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tape.base.clock import now_ms
from tape.base.ids import new_time_ordered_id
from tape.base.telemetry.tracing import NO_TRACE, Trace
from tape.engine.ledgers import runs
from tape.engine.ledgers.run_record import Run
from tape.engine.scheduler import CHANNEL
from tape.errors import InvalidInput
from tape.model import subject
from tape.model.entry import check_id
from tape.store import Reader, Transaction
from tape.store.lease import expiry_ms, latest_expiry_ms
from tape.store.records import Record, columns, load, load_all, store

DEFAULT_LIMIT = 200
DEFAULT_CLAIM_MS = 60_000

GATE_TIMEOUT, RECONCILE, WAKE = "gate_timeout", "reconcile", "wake"
SERVER_KINDS = frozenset({GATE_TIMEOUT, RECONCILE, WAKE})


class Timer(Record, frozen=True):
    """A row of tape_timers."""

    run_id: str
    timer_id: str
    fire_at_ms: int
    kind: str
    payload_json: str
    fired: bool
    created_at_ms: int
    claimed_by: str = ""
    claim_expires_at_ms: int = 0
    # When the server fires it; 0 if it has, or never does.
    server_due_ms: int = 0
    server_fired_at_ms: int = 0
    # Of a sleep, whose time is relative: when it was set.
    set_at_ms: int = 0


_COLUMNS = columns(Timer)


def find(reader: Reader | Transaction, run_id: str, timer_id: str) -> Timer | None:
    """The timer, or None."""
    if not runs.is_visible(reader, run_id):
        return None
    row = reader.one(f"SELECT {_COLUMNS} FROM tape_timers WHERE run_id = ? AND timer_id = ?", run_id, timer_id)
    return load(Timer, row)


def set_timer(tx: Transaction, wanted: Timer, *, owner: str = "", trace: Trace = NO_TRACE) -> Timer:
    """Set a timer, or set it anew; without an id it gets one."""
    check_id("timer_id", wanted.timer_id)
    if wanted.fire_at_ms < 0:
        raise InvalidInput(f"fire_at_ms {wanted.fire_at_ms} must not be negative.")
    run = runs.get_writable(tx, wanted.run_id, owner)
    timer_id = wanted.timer_id or new_time_ordered_id(now_ms(), version=4)
    before = find(tx, wanted.run_id, timer_id)
    created = before.created_at_ms if before else now_ms()
    timer = msgspec.structs.replace(wanted, timer_id=timer_id, fired=False, created_at_ms=created)
    if timer.kind in SERVER_KINDS:
        timer = msgspec.structs.replace(timer, server_due_ms=max(timer.fire_at_ms, 1))
        journal(tx, run, timer, "set", {"fire_at_ms": timer.fire_at_ms}, trace)
        tx.notify(CHANNEL)
    store(tx, "tape_timers", ("run_id", "timer_id"), timer)
    return timer


def cancel(tx: Transaction, run_id: str, timer_id: str, *, trace: Trace = NO_TRACE) -> bool:
    """Remove a timer; False if there is none."""
    if (timer := find(tx, run_id, timer_id)) is None:
        return False
    if timer.server_due_ms:
        journal(tx, runs.get(tx, run_id), timer, "cancelled", {}, trace)
    return tx.execute("DELETE FROM tape_timers WHERE run_id = ? AND timer_id = ?", run_id, timer_id) > 0


def journal(tx: Transaction, run: Run, timer: Timer, verb: str, payload: dict[str, Any], trace: Trace) -> None:
    """Append an entry about a timer of the server's kinds to its run."""
    described = {"timer_id": timer.timer_id, "kind": timer.kind, "status": verb, **payload}
    runs.journal(tx, run, subject.timer(verb, timer.kind, run.run_id), described, trace)


def list_due(reader: Reader | Transaction, *, now: int = 0, limit: int = 0) -> list[Timer]:
    """List timers that are due, not fired and not leased, longest due first."""
    moment = now_ms()
    visible, tenant = runs.visible_condition("tape_timers.run_id")
    rows = reader.query(
        f"SELECT {_COLUMNS} FROM tape_timers WHERE fired = 0 AND fire_at_ms <= ?"
        f" AND (claim_expires_at_ms <= ? OR claim_expires_at_ms > ?){visible}"
        " ORDER BY fire_at_ms, timer_id LIMIT ?",
        now or moment,
        moment,
        latest_expiry_ms(moment),
        *tenant,
        limit if limit > 0 else DEFAULT_LIMIT,
    )
    return load_all(Timer, rows)


def claim_due(tx: Transaction, *, now: int = 0, limit: int = 0) -> list[Timer]:
    """Claim due timers: they are marked as fired, and no other worker gets them."""
    claimed = list_due(tx, now=now, limit=limit)
    for timer in claimed:
        tx.execute("UPDATE tape_timers SET fired = 1 WHERE run_id = ? AND timer_id = ?", timer.run_id, timer.timer_id)
    return [msgspec.structs.replace(timer, fired=True) for timer in claimed]


def lease_due(tx: Transaction, *, claimer: str, lease_ms: int = 0, now: int = 0, limit: int = 0) -> list[Timer]:
    """Lease due timers: they are redelivered unless the claimer completes them before the lease expires."""
    expires = expiry_ms(now_ms(), lease_ms, DEFAULT_CLAIM_MS)
    leased = [
        msgspec.structs.replace(timer, claimed_by=claimer, claim_expires_at_ms=expires)
        for timer in list_due(tx, now=now, limit=limit)
    ]
    for timer in leased:
        store(tx, "tape_timers", ("run_id", "timer_id"), timer)
    return leased


def complete(tx: Transaction, run_id: str, timer_id: str, *, claimer: str) -> bool:
    """Mark a leased timer as fired; False if it is no longer this claimer's."""
    if not claimer:
        raise InvalidInput("claimer is empty; only the lease owner can complete a timer.")
    if not runs.is_visible(tx, run_id):
        return False
    return (
        tx.execute(
            "UPDATE tape_timers SET fired = 1, claimed_by = '', claim_expires_at_ms = 0"
            " WHERE run_id = ? AND timer_id = ? AND fired = 0 AND claimed_by = ?",
            run_id,
            timer_id,
            claimer,
        )
        > 0
    )
