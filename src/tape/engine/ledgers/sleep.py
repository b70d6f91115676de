"""Durable sleep: a run parks, and the server makes it runnable when its time has come."""

from __future__ import annotations

from tape.base.clock import now_ms
from tape.base.telemetry.tracing import NO_TRACE, Trace
from tape.engine.ledgers import runs, timers
from tape.engine.ledgers.gates import MAX_WAIT_MS
from tape.engine.ledgers.runs import ENDED
from tape.engine.ledgers.timers import WAKE, Timer
from tape.errors import IllegalTransition, InvalidInput
from tape.model.ledger_states import RunStatus
from tape.store import Transaction


def sleep(
    tx: Transaction, run_id: str, timer_id: str, duration_ms: int, *, owner: str = "", trace: Trace = NO_TRACE
) -> tuple[bool, int]:
    """Whether the run has slept for the duration, and until when it sleeps. Otherwise it parks and releases its lease.

    The first call sets the time; later calls with the same `timer_id` wait for the same time.
    """
    if not timer_id:
        raise InvalidInput("timer_id is empty; each sleep of a run has its own.")
    if not 0 < duration_ms <= MAX_WAIT_MS:
        raise InvalidInput(f"duration_ms {duration_ms} must lie between 1 and {MAX_WAIT_MS} (10 years).")
    run = runs.get_writable(tx, run_id, owner)
    now = now_ms()
    timer = timers.find(tx, run_id, timer_id)
    if run.status in ENDED and (timer is None or timer.fire_at_ms > now):
        raise IllegalTransition(f"The run {run_id!r} is {run.status.name} and cannot sleep.")
    if timer is None:
        wanted = Timer(run_id, timer_id, now + duration_ms, WAKE, "", fired=False, created_at_ms=0, set_at_ms=now)
        timer = timers.set_timer(tx, wanted, owner=owner, trace=trace)
    if timer.fire_at_ms <= now:
        return True, timer.fire_at_ms
    waiting_on = f"timer:{timer_id}"
    if run.status != RunStatus.WAITING or run.waiting_on_gate != waiting_on:
        runs.park(tx, run, waiting_on, "", trace=trace)
    return False, timer.fire_at_ms
