"""Runs all recovery workers of a process together."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from tape.base.clock import now_ms
from tape.base.owner import new_owner
from tape.base.process import stop_event
from tape.client.channel import DEFAULT_URL
from tape.client.sync import TapeClient
from tape.durable.lease import DEFAULT_TTL_MS
from tape.reactors.compaction import compact_once
from tape.reactors.compensation import compensate_once
from tape.reactors.connection import Report
from tape.reactors.loop import repeat
from tape.reactors.reconciliation import Reconciler
from tape.reactors.recovery import recover_once
from tape.reactors.timers import fire_due_timers_once

log = logging.getLogger(__name__)

Worker = Callable[[], list[Report]]


def run_reactors(
    *,
    runner: Any = None,
    redrive_fn: Any = None,
    url: str = DEFAULT_URL,
    recover: bool = True,
    reconcile: bool = True,
    timers: bool = True,
    compensations: bool = True,
    compact: bool = False,
    compact_hot_window_s: float = 86400.0,
    compact_interval_s: float = 300.0,
    interval_s: float = 2.0,
    reconcile_pending_after_s: float = 0.0,
    claimer: str = "",
    once: bool = False,
    on_tick: Callable[[dict[str, Any]], None] | None = None,
    on_timer: Callable[[Any], None] | None = None,
    app_name: str = "",
    lease_ttl_ms: int = DEFAULT_TTL_MS,
    concurrency: int = 1,
    stop: threading.Event | None = None,
) -> None:
    """Run the recovery workers until stopped: recovery, reconciliation, timers, compensation, compaction.

    Each worker has its own thread, so that a long run delays no other worker. `on_tick` gets a dict with the reports of
    a pass by the worker's name (`recover`, `reconcile`, `timers`, `compensations`, `compact`); with `once`, one dict
    with all of them. Recovery needs a `runner` or a `redrive_fn`, timers one of them or `on_timer`; without, they are
    idle. `concurrency` runs are resumed at the same time.
    """
    name = claimer or new_owner()
    can_drive = runner is not None or redrive_fn is not None
    with TapeClient(url) as client, stop_event(stop) as event:
        reconciler = Reconciler(client, pending_after_ms=int(reconcile_pending_after_s * 1000))
        driving: dict[str, Any] = {"runner": runner, "redrive_fn": redrive_fn, "client": client, "stop": event}
        reactors: dict[str, Worker] = {}
        if recover and can_drive:
            reactors["recover"] = lambda: recover_once(
                **driving, app_name=app_name, lease_ttl_ms=lease_ttl_ms, concurrency=concurrency
            )
        if reconcile:
            reactors["reconcile"] = lambda: reconciler.once(stop=event)
        if timers and (can_drive or on_timer is not None):
            reactors["timers"] = lambda: fire_due_timers_once(
                **driving, on_timer=on_timer, claimer=name, run_lease_ttl_ms=lease_ttl_ms
            )
        if compensations:
            reactors["compensations"] = lambda: compensate_once(client=client, claimer=name, stop=event)
        if compact:
            reactors["compact"] = lambda: compact_once(
                before_ms=now_ms() - int(compact_hot_window_s * 1000), client=client, stop=event
            )
        for what, wanted in (("recover", recover), ("timers", timers)):
            if wanted and what not in reactors:
                log.info("worker %s idle: no recovery function is registered", what)
        if once:
            reports = {what: reactor() for what, reactor in reactors.items()}
            if on_tick is not None:
                on_tick(reports)
            return
        _run_together(reactors, {"compact": compact_interval_s}, interval_s, event, on_tick)


def _run_together(
    reactors: dict[str, Worker],
    intervals: dict[str, float],
    interval_s: float,
    stop: threading.Event,
    on_tick: Callable[[dict[str, Any]], None] | None,
) -> None:
    one_at_a_time = threading.Lock()
    failures: list[BaseException] = []

    def loop(name: str, reactor: Worker) -> None:
        def report_all(reports: list[Report]) -> None:
            if on_tick is not None:
                with one_at_a_time:
                    on_tick({name: reports})

        try:
            repeat(reactor, name=name, interval_s=intervals.get(name, interval_s), stop=stop, on_result=report_all)
        except BaseException as error:  # raised by on_tick; raised again in the caller
            failures.append(error)
            stop.set()

    threads = [
        threading.Thread(target=loop, args=each, name=f"tape-{each[0]}", daemon=True) for each in reactors.items()
    ]
    for thread in threads:
        thread.start()
    stop.wait()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
