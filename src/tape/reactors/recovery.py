"""Recovery: resumes runs whose process died, or whose gate was answered after the run had parked."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from tape.base.coroutines import run_to_end
from tape.base.owner import new_owner
from tape.client.channel import DEFAULT_URL
from tape.client.sync import TapeClient
from tape.durable.interruptions import find_interruption
from tape.durable.lease import DEFAULT_TTL_MS, RunLease
from tape.durable.runs import adopted_owner
from tape.durable.server_retry import call_with_retry
from tape.errors import IllegalTransition, InvalidInput, LeaseHeld, NotFound, RunInterrupted, RunParked, TapeError
from tape.proto import tape_pb2 as pb
from tape.reactors.connection import Report, connected, for_each

log = logging.getLogger(__name__)

Drive = Callable[[pb.RunState], Any]


def recover_once(
    *,
    runner: Any = None,
    redrive_fn: Any = None,
    url: str = DEFAULT_URL,
    limit: int = 50,
    app_name: str = "",
    lease_ttl_ms: int = DEFAULT_TTL_MS,
    concurrency: int = 1,
    client: TapeClient | None = None,
    stop: threading.Event | None = None,
) -> list[Report]:
    """Resume runs that are runnable, were abandoned, or whose gate was answered; a report on each.

    `redrive_fn(run)` gets the RunState and resumes the run with `tape.continue_run(run)`. A `runner` of google-adk
    resumes the invocation, and only runs of its own app. Each run is leased first, so that two processes never execute
    the same one: `outcome` is then `held`. A run that fails is retried when its lease expires (`lease_ttl_ms`).
    """
    drive = driver(runner, redrive_fn)
    with connected(url, client) as connection:
        app = app_name or str(getattr(runner, "app_name", None) or "")
        found = connection.list_runs_to_recover(limit=limit, app_name=app).runs
        return for_each(
            found,
            lambda run: redrive(run, drive, client=connection, lease_ttl_ms=lease_ttl_ms),
            concurrency=concurrency,
            stop=stop,
        )


def resume(
    invocation_id: str,
    *,
    runner: Any = None,
    redrive_fn: Any = None,
    user_id: str = "",
    session_id: str = "",
    app_name: str = "",
    url: str = DEFAULT_URL,
    lease_ttl_ms: int = DEFAULT_TTL_MS,
    client: TapeClient | None = None,
) -> None:
    """Resume the run of one invocation now. Raises its errors; LeaseHeld if another process has leased it.

    `app_name`, `user_id` and `session_id` narrow the search for it.
    """
    drive = driver(runner, redrive_fn)
    with connected(url, client) as connection:
        app = app_name or str(getattr(runner, "app_name", None) or "")
        run = _find(connection, invocation_id, app, user_id, session_id)
        owner, asked_at = new_owner(), time.monotonic()
        leased = connection.resume_run(run_id=run.run_id, lease_owner=owner, lease_ttl_ms=lease_ttl_ms).run
        _resume_leased(leased, owner, drive, connection, lease_ttl_ms, asked_at)


def driver(runner: Any, redrive_fn: Any) -> Drive:
    """How runs are resumed: by a function, or by a runner of google-adk."""
    if (runner is None) == (redrive_fn is None):
        raise InvalidInput("Pass either runner, a google-adk Runner, or redrive_fn, a function of the RunState.")
    if redrive_fn is not None:
        return lambda run: run_to_end(redrive_fn(run), on="agents")

    async def drive(run: pb.RunState) -> None:
        async for _ in runner.run_async(
            user_id=run.user_id, session_id=run.session_id, invocation_id=run.invocation_id
        ):
            pass

    return lambda run: run_to_end(drive(run), on="agents")


def redrive(run: pb.RunState, drive: Drive, *, client: TapeClient, lease_ttl_ms: int) -> Report:
    """Lease a run and resume it; returns a report."""
    owner, asked_at = new_owner(), time.monotonic()
    try:
        leased = client.resume_run(run_id=run.run_id, lease_owner=owner, lease_ttl_ms=lease_ttl_ms).run
    except LeaseHeld as error:
        return _report(run, "held", str(error))
    except (IllegalTransition, NotFound) as error:
        return _report(run, "over", str(error))
    return resume_leased(leased, owner, drive, client=client, lease_ttl_ms=lease_ttl_ms, asked_at=asked_at)


def resume_leased(
    run: pb.RunState, owner: str, drive: Drive, *, client: TapeClient, lease_ttl_ms: int, asked_at: float
) -> Report:
    """Resume a run whose lease this owner has; returns a report."""
    outcome, reason = "recovered", ""
    try:
        _resume_leased(run, owner, drive, client, lease_ttl_ms, asked_at)
    except (Exception, RunInterrupted, BaseExceptionGroup) as error:
        if (interruption := find_interruption(error)) is not None:
            outcome = "parked" if isinstance(interruption, RunParked) else "interrupted"
            reason = str(interruption)
        elif not isinstance(error, Exception):
            raise
        else:
            log.warning("resuming run %s failed", run.run_id, exc_info=True)
            outcome, reason = "failed", f"{type(error).__name__}: {error}"
    try:
        run = call_with_retry(client.get_run, run_id=run.run_id)
    except TapeError as error:
        reason = reason or str(error)
    return _report(run, outcome, reason)


def _resume_leased(
    run: pb.RunState, owner: str, drive: Drive, client: TapeClient, lease_ttl_ms: int, asked_at: float
) -> None:
    token = adopted_owner.set(owner)
    try:
        with RunLease(client, run.run_id, owner, lease_ttl_ms, leased_at=asked_at):
            drive(run)
    finally:
        adopted_owner.reset(token)


def _find(client: TapeClient, invocation_id: str, app_name: str, user_id: str, session_id: str) -> pb.RunState:
    """The newest run of an invocation."""
    filters = {"app_name": app_name, "user_id": user_id if app_name else ""}
    filters["session_id"] = session_id if filters["user_id"] else ""
    before: tuple[int, str] = (0, "")
    while page := client.list_runs(**filters, before_started_at_ms=before[0], before_run_id=before[1], limit=1000).runs:
        for run in page:
            is_it = run.invocation_id == invocation_id
            if is_it and user_id in ("", run.user_id) and session_id in ("", run.session_id):
                return run
        before = (page[-1].started_at_ms, page[-1].run_id)
    raise NotFound(f"no run has the invocation_id {invocation_id!r}" + (f" in app {app_name!r}." if app_name else "."))


def _report(run: pb.RunState, outcome: str, reason: str) -> Report:
    return {
        "run_id": run.run_id,
        "app_name": run.app_name,
        "invocation_id": run.invocation_id,
        "outcome": outcome,
        "reason": reason,
        "status": pb.RunStatus.Name(run.status).removeprefix("RUN_STATUS_"),
    }
