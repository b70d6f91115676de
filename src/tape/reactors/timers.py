"""Timers: due timers are leased, handled, and then completed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from tape.base.coroutines import run_to_end
from tape.base.owner import claim_owner, new_owner
from tape.client.channel import DEFAULT_URL
from tape.client.sync import TapeClient
from tape.durable.lease import DEFAULT_TTL_MS
from tape.errors import IllegalTransition, InvalidInput, LeaseHeld, NotFound
from tape.proto import tape_pb2 as pb
from tape.reactors.connection import Report, connected
from tape.reactors.recovery import Drive, driver, resume_leased

log = logging.getLogger(__name__)

DEFAULT_LEASE_MS = 60_000


def fire_due_timers_once(
    url: str = DEFAULT_URL,
    *,
    runner: Any = None,
    redrive_fn: Any = None,
    on_timer: Callable[[Any], None] | None = None,
    client: TapeClient | None = None,
    limit: int = 200,
    claimer: str = "",
    lease_ttl_ms: int = DEFAULT_LEASE_MS,
    run_lease_ttl_ms: int = DEFAULT_TTL_MS,
    stop: threading.Event | None = None,
) -> list[Report]:
    """Fire due timers; a report on each.

    `on_timer(timer)` is called, within `lease_ttl_ms`; then the timer's run is resumed as by `recover_once`. A timer
    whose handler raises, or whose process dies, is redelivered when its lease expires. A timer whose run is leased to
    another process is `held` and redelivered too, unless `on_timer` has handled it. The server itself fires the kinds
    `wake`, `gate_timeout` and `reconcile` too: a run that it has woken and that has parked again is left alone.
    """
    drive = driver(runner, redrive_fn) if runner is not None or redrive_fn is not None else None
    if drive is None and on_timer is None:
        raise InvalidInput("A timer needs a handler: pass on_timer, runner or redrive_fn.")
    name = claim_owner(claimer)
    with connected(url, client) as connection:
        reports: list[Report] = []
        seen: set[tuple[str, str]] = set()
        if not connection.list_due_timers(limit=1).timers:
            return reports  # a listing costs less than a lease
        # One at a time: a lease must not expire while its timer waits for others.
        while len(reports) < limit and not (stop is not None and stop.is_set()):
            due = connection.list_due_timers(claim=True, claimer=name, lease_ttl_ms=lease_ttl_ms, limit=1).timers
            # A timer that failed, and whose lease has expired, waits for the next pass.
            if not due or (due[0].run_id, due[0].timer_id) in seen:
                break
            seen.add((due[0].run_id, due[0].timer_id))
            reports.append(_fire(due[0], connection, name, on_timer, drive, run_lease_ttl_ms))
        return reports


def _fire(
    timer: pb.TimerRecord,
    client: TapeClient,
    claimer: str,
    on_timer: Callable[[Any], Any] | None,
    drive: Drive | None,
    run_lease_ttl_ms: int,
) -> Report:
    if on_timer is not None:
        try:
            run_to_end(on_timer(timer))
        except Exception as error:
            log.warning("timer %s of run %s failed", timer.timer_id, timer.run_id, exc_info=True)
            return _report(timer, "failed", f"{type(error).__name__}: {error}")
    if drive is None:
        return _complete(timer, client, claimer, "fired", "")
    if timer.server_fired_at_ms and client.get_run(timer.run_id).status == pb.RUN_STATUS_WAITING:
        return _complete(timer, client, claimer, "fired", "the server has woken the run, and it has parked again since")
    owner, asked_at = new_owner(), time.monotonic()
    try:
        run = client.resume_run(run_id=timer.run_id, lease_owner=owner, lease_ttl_ms=run_lease_ttl_ms).run
    except LeaseHeld as error:
        if on_timer is None:
            return _report(timer, "held", str(error))
        return _complete(timer, client, claimer, "fired", f"not resumed: {error}")
    except (IllegalTransition, NotFound) as error:
        return _complete(timer, client, claimer, "over", str(error))
    # The run is leased now: recovery would resume it if this process died.
    report = _complete(timer, client, claimer, "fired", "")
    driven = resume_leased(run, owner, drive, client=client, lease_ttl_ms=run_lease_ttl_ms, asked_at=asked_at)
    return report | {"run": driven}


def _complete(timer: pb.TimerRecord, client: TapeClient, claimer: str, outcome: str, reason: str) -> Report:
    completed = client.complete_timer(run_id=timer.run_id, timer_id=timer.timer_id, claimer=claimer).completed
    if not completed and not reason:
        reason = "it was cancelled, replaced, or leased to another process meanwhile"
    return _report(timer, outcome, reason)


def _report(timer: pb.TimerRecord, outcome: str, reason: str) -> Report:
    return {
        "run_id": timer.run_id,
        "timer_id": timer.timer_id,
        "kind": timer.kind,
        "outcome": outcome,
        "reason": reason,
    }
