"""Runs: durable executions with several steps, carried out by one lease owner at a time."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import msgspec

from tape.base.clock import now_ms
from tape.base.ids import new_time_ordered_id
from tape.base.telemetry.tracing import NO_TRACE, Trace
from tape.engine.ledgers import summary_runs
from tape.engine.ledgers.run_record import COLUMNS, LISTED_COLUMNS, PLAYBOOKS, Run
from tape.errors import (
    IllegalTransition,
    InvalidInput,
    LeaseHeld,
    NotFound,
    RunCancelled,
    RunOver,
    RunRefused,
    RunWaiting,
)
from tape.journal.appender import Appender
from tape.model import subject
from tape.model.entry import Draft, Entry, check_id
from tape.model.ledger_states import ObligationStatus, Owed, RunStatus, check_transition, parse
from tape.model.principal import current_principal
from tape.store import Reader, Transaction
from tape.store.lease import Lease, expiry_ms, latest_expiry_ms
from tape.store.records import insert, load, load_all

DEFAULT_LEASE_MS = 120_000
DEFAULT_LIMIT = 100

ENDED = frozenset({RunStatus.TERMINAL, RunStatus.FAILED, RunStatus.STUCK, RunStatus.CANCELLED})
_ENDINGS = ENDED | {RunStatus.COMPENSATING}
# The obligations of a run are owed while it has one of these statuses.
UNDOING = frozenset({RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.COMPENSATING, RunStatus.STUCK})

# The final statuses that a run may get, by its current status. An ended run may still have to compensate.
ENDING: Mapping[RunStatus, frozenset[RunStatus]] = {
    RunStatus.RUNNABLE: _ENDINGS,
    RunStatus.RUNNING: _ENDINGS,
    RunStatus.WAITING: _ENDINGS,
    RunStatus.COMPENSATING: _ENDINGS,
    RunStatus.TERMINAL: frozenset({RunStatus.TERMINAL}),
    RunStatus.FAILED: frozenset({RunStatus.FAILED, RunStatus.COMPENSATING, RunStatus.STUCK}),
    RunStatus.STUCK: frozenset({RunStatus.STUCK, RunStatus.COMPENSATING, RunStatus.FAILED, RunStatus.CANCELLED}),
    RunStatus.CANCELLED: frozenset({RunStatus.CANCELLED, RunStatus.COMPENSATING}),
}


def find(reader: Reader | Transaction, run_id: str) -> Run | None:
    """The run with that id, or None. A run of a tenant that the caller does not see does not exist for it."""
    run = load(Run, reader.one(f"SELECT {COLUMNS} FROM tape_runs WHERE run_id = ?", run_id))
    if run is None:
        run = summary_runs.find(reader, run_id)
    return run if run is not None and current_principal().sees(run.tenant) else None


def is_visible(reader: Reader | Transaction, run_id: str) -> bool:
    """Whether what belongs to the run exists for the caller."""
    principal = current_principal()
    if principal.sees_all_tenants:
        return True
    return find(reader, run_id) is not None


def visible_condition(run_id: str) -> tuple[str, list[str]]:
    """The condition that the run in a column is one that the caller sees, and its parameters. Begins with AND."""
    principal = current_principal()
    if principal.sees_all_tenants:
        return "", []
    return f" AND EXISTS (SELECT 1 FROM tape_runs r WHERE r.run_id = {run_id} AND r.tenant = ?)", [principal.tenant]


def _tenant_condition() -> tuple[str, list[str]]:
    principal = current_principal()
    return ("", []) if principal.sees_all_tenants else (" AND tenant = ?", [principal.tenant])


def get(reader: Reader | Transaction, run_id: str) -> Run:
    """The run with that id; NotFound if there is none."""
    run = find(reader, run_id)
    if run is None:
        raise NotFound(f"no such run: {run_id!r}.")
    return run


def get_writable(tx: Transaction, run_id: str, owner: str, caller: str = "") -> Run:
    """The run, if this owner may write to it. Raises LeaseHeld if another owner has an unexpired lease.

    A client that names no owner, as older ones do, is held to the lease by its `caller` if one is passed. A run that is
    kept as a summary gets a row of its own, leased to this owner.
    """
    run = get(tx, run_id)
    check_lease(run, owner, caller)
    if summary_runs.is_summary(run):
        run = summary_runs.expand(tx, run, owner)
    return run


def check_lease(run: Run, owner: str, caller: str = "") -> None:
    """Raise LeaseHeld if another owner has an unexpired lease on the run, or for no owner another caller."""
    now = now_ms()
    if owner:
        if not Lease(run.lease_owner, run.lease_expires_at_ms).is_open_to(owner, now):
            raise LeaseHeld(
                f"The run {run.run_id!r} is leased to {run.lease_owner!r} for another"
                f" {run.lease_expires_at_ms - now} ms; {owner!r} may not write to it until then."
            )
    elif caller and not Lease(run.lease_caller, run.lease_expires_at_ms).is_open_to(caller, now):
        raise LeaseHeld(
            f"The run {run.run_id!r} is leased for another {run.lease_expires_at_ms - now} ms to another caller than"
            f" this one ({caller!r}), which names no lease owner (metadata tape-lease-owner)."
        )


def check_acting(run: Run) -> None:
    """Raise RunRefused if the run is parked, cancelled or ended: it decides nothing and begins no effect then."""
    if RunStatus.CANCELLED in (run.status, run.former_status):
        raise RunRefused(RunCancelled(f"The run {run.run_id!r} was cancelled: it begins nothing new."))
    if run.status in ENDED or run.former_status:
        raise RunRefused(RunOver(f"The run {run.run_id!r} is {run.status.name}: it begins nothing new."))
    if run.status == RunStatus.WAITING:
        raise RunRefused(RunWaiting(_describe_waiting(run)))


def _describe_waiting(run: Run) -> str:
    return (
        f"The run {run.run_id!r} is WAITING at {run.waiting_on_gate!r} and does nothing until it is resumed:"
        " answer what it waits for, then call BeginRun or ResumeRun."
    )


def journal(tx: Transaction, run: Run, subject: str, payload: dict[str, Any], trace: Trace) -> Entry:
    """Append an entry to a run, with the run's identity."""
    appender = tx.enlist(Appender)
    appender.cache_run_seq((run.run_id, run.tenant), run.seq_cursor)
    return appender.append([draft_of(run, subject, payload, trace)])[0]


def draft_of(run: Run, subject: str, payload: dict[str, Any], trace: Trace) -> Draft:
    """What `journal` appends."""
    return Draft(
        subject=subject,
        kind=subject.split("/", 3)[2],
        run_id=run.run_id,
        payload_json=msgspec.json.encode({"run_id": run.run_id, **payload}).decode(),
        tenant=run.tenant,
        user=run.user_id,
        session=run.session_id,
        **trace._asdict(),
    )


def with_cursor(tx: Transaction, run: Run) -> Run:
    """The run with the seq it has reached within this transaction."""
    appender = tx.enlist(Appender)
    key = (run.run_id, run.tenant)
    appender.cache_run_seq(key, run.seq_cursor)
    return msgspec.structs.replace(run, seq_cursor=appender.run_seq(key))


# ── lifecycle of a run ────────────────────────────────────────────────────────────────────────────────


def begin(
    tx: Transaction,
    wanted: Run,
    *,
    owner: str,
    lease_ms: int,
    trace: Trace = NO_TRACE,
    extra_payload: Mapping[str, Any] | None = None,
    is_recoverable: bool = False,
    caller: str = "",
) -> tuple[Run, bool]:
    """Begin a run, or resume it: the same invocation is the same run. True if it existed already.

    `wanted` carries the four ids and who the run acts for; the rest is filled in here. `about` goes into
    the entry of a new run; a recoverable run starts with an expired lease.
    """
    names = ("app_name", "user_id", "session_id", "invocation_id", "tenant_id", "actor", "subject", "agent_id")
    for name in (*names, "parent_run_id"):
        check_id(name, getattr(wanted, name))
    tenant = wanted.tenant or _tenant_of_child(tx, wanted) or tenant_of(wanted.tenant_id, wanted.app_name)
    wanted = msgspec.structs.replace(wanted, tenant=tenant)
    if (existing := find_invocation(tx, wanted)) is not None:
        return _resume_existing(tx, existing, owner, lease_ms, caller), True
    if wanted.parent_run_id:
        _check_parent(tx, wanted)
    now = now_ms()
    run = msgspec.structs.replace(
        wanted,
        run_id=new_time_ordered_id(now, version=4),
        status=RunStatus.RUNNING,
        lease_owner=owner,
        lease_expires_at_ms=now - 1 if is_recoverable else expiry_ms(now, lease_ms, DEFAULT_LEASE_MS),
        lease_caller=caller,
        started_at_ms=now,
    )
    insert(tx, "tape_runs", run)
    payload = {
        "app": run.app_name,
        "user": run.user_id,
        "session": run.session_id,
        "invocation_id": run.invocation_id,
        "status": "running",
        "tenant_id": run.tenant_id,
        "actor": run.actor,
        "subject": run.subject,
        "agent_id": run.agent_id,
        "aiplex_instance_id": run.aiplex_instance_id,
        **({"parent_run_id": run.parent_run_id} if run.parent_run_id else {}),
        **(extra_payload or {}),
    }
    journal(tx, run, subject_of(run, "running"), payload, trace)
    return run, False


def find_invocation(tx: Transaction, wanted: Run) -> Run | None:
    """The run with the four ids and the tenant of `wanted`, or None."""
    row = tx.one(
        f"SELECT {COLUMNS} FROM tape_runs"
        " WHERE app_name = ? AND user_id = ? AND session_id = ? AND invocation_id = ? AND tenant = ?",
        wanted.app_name,
        wanted.user_id,
        wanted.session_id,
        wanted.invocation_id,
        wanted.tenant,
    )
    return load(Run, row)


def _tenant_of_child(tx: Transaction, wanted: Run) -> str:
    """The tenant of the parent, for a run that names a parent and no tenant; empty for others."""
    return get(tx, wanted.parent_run_id).tenant if wanted.parent_run_id and not wanted.tenant_id else ""


def _check_parent(tx: Transaction, child: Run) -> None:
    """Raise unless the parent of a new run exists, belongs to the same tenant, and may begin something."""
    parent = get(tx, child.parent_run_id)
    if parent.tenant != child.tenant:
        raise InvalidInput(
            f"parent_run_id {child.parent_run_id!r} is a run of another tenant ({parent.tenant!r}, the new run belongs"
            f" to {child.tenant!r}); begin the child with the tenant_id or app_name of its parent."
        )
    check_acting(parent)


def tenant_of(tenant_id: str, app_name: str) -> str:
    """The tenant of a new run: the caller's, or on an open server the one it names, else the app."""
    return current_principal().tenant_for(tenant_id) or app_name


def _resume_existing(tx: Transaction, run: Run, owner: str, lease_ms: int, caller: str) -> Run:
    """Resume an existing run, unless it is terminal or stuck."""
    check_lease(run, owner, caller)
    if run.status in (RunStatus.TERMINAL, RunStatus.STUCK):
        return with_cursor(tx, run)
    return with_cursor(tx, _store_lease(tx, run, owner, lease_ms, caller))


def resume(tx: Transaction, run_id: str, *, owner: str, lease_ms: int, renew: bool = False, caller: str = "") -> Run:
    """Lease a run to recover it, or renew its lease (heartbeat).

    With `renew` the lease must still be this owner's: a late heartbeat does not wake a waiting run.
    """
    run = get_writable(tx, run_id, owner, caller)
    if renew and (run.status != RunStatus.RUNNING or run.lease_owner != owner):
        raise IllegalTransition(
            f"The run {run_id!r} is {run.status.name} and not leased to {owner!r}: nothing to renew."
        )
    if run.status in ENDED:
        allowed = ", ".join(sorted(status.name for status in RunStatus if status not in ENDED))
        raise IllegalTransition(f"The run {run_id!r} is {run.status.name} and cannot be resumed; allowed: {allowed}.")
    return with_cursor(tx, _store_lease(tx, run, owner, lease_ms, caller))


def _store_lease(tx: Transaction, run: Run, owner: str, lease_ms: int, caller: str) -> Run:
    if run.status in UNDOING:
        _clear_obligations(tx, run)
    run = leased(run, owner, lease_ms, caller)
    tx.update("tape_runs", ("run_id",), STATE_COLUMNS, [state_row(run)])
    return run


def leased(run: Run, owner: str, lease_ms: int, caller: str = "") -> Run:
    """The run with a new lease."""
    return msgspec.structs.replace(
        run,
        status=RunStatus.RUNNING,
        lease_owner=owner,
        lease_expires_at_ms=expiry_ms(now_ms(), lease_ms, DEFAULT_LEASE_MS),
        lease_caller=caller,
        waiting_on_gate="",
        former_status=0,
    )


# The columns of a run's status and lease.
STATE_COLUMNS = (
    "run_id",
    "status",
    "lease_owner",
    "lease_expires_at_ms",
    "lease_caller",
    "waiting_on_gate",
    "former_status",
    "ended_at_ms",
    "detail_json",
    "dead_task_id",
    "result_json",
)


def state_row(run: Run) -> tuple[Any, ...]:
    """A run's status and lease, as a row of these columns."""
    return (
        run.run_id,
        int(run.status),
        run.lease_owner,
        run.lease_expires_at_ms,
        run.lease_caller,
        run.waiting_on_gate,
        run.former_status,
        run.ended_at_ms,
        run.detail_json,
        run.dead_task_id,
        run.result_json,
    )


def _clear_obligations(tx: Transaction, run: Run) -> None:
    """Clear the obligations of a failed run that is resumed. Raises IllegalTransition if it is being compensated."""
    row = tx.one(
        f"SELECT count(*) FROM tape_obligations WHERE run_id = ? AND owed = {Owed.BECAUSE_RUN_FAILED}"
        f" AND (status <> {ObligationStatus.PENDING} OR attempts > 0)",
        run.run_id,
    )
    if row and row[0]:
        raise IllegalTransition(
            f"The run {run.run_id!r} is {run.status.name} and what it did is being undone ({row[0]} obligation(s) so"
            " far), so it cannot go on. Begin a new one, with another invocation_id."
        )
    _clear_owed(tx, run.run_id)


def _clear_owed(tx: Transaction, run_id: str) -> None:
    tx.execute(
        f"UPDATE tape_obligations SET owed = {Owed.IF_RUN_FAILS} WHERE run_id = ? AND owed = {Owed.BECAUSE_RUN_FAILED}",
        run_id,
    )


def end(
    tx: Transaction,
    run_id: str,
    status: int,
    *,
    detail_json: str = "",
    result_json: str = "",
    facts_json: str = "",
    dead_task_id: str = "",
    owner: str = "",
    caller: str = "",
    may_end_parked: bool = True,
    with_children: bool = True,
    trace: Trace = NO_TRACE,
) -> Run:
    """End a run, or make it COMPENSATING. Repeating the same status changes nothing.

    `dead_task_id` is the command whose dead letter fails the run: redriving that task reopens the run. Without
    `may_end_parked`, a run that waits is not ended. `facts_json` is a JSON object for the entry. Up to 200 runs below a
    cancelled one are cancelled with it; `cancel_children` cancels the rest.
    """
    after = parse(RunStatus, "status", status)
    if after not in _ENDINGS:
        allowed = ", ".join(sorted(state.name for state in _ENDINGS))
        raise InvalidInput(f"status {after.name} does not end a run; use one of {allowed}.")
    run = get_writable(tx, run_id, owner, caller)
    if not may_end_parked:
        check_end(run)
    check_transition(f"The run {run_id!r}", ENDING, run.status, after)
    if run.former_status and after not in (run.former_status, RunStatus.COMPENSATING, RunStatus.STUCK):
        was = RunStatus(run.former_status).name
        raise IllegalTransition(
            f"The run {run_id!r} is {run.status.name} because it was {was} and is being undone, and cannot become"
            f" {after.name}; allowed: COMPENSATING, STUCK, {was}."
        )
    if run.status == after:
        return with_cursor(tx, run)
    if result_json and after != RunStatus.TERMINAL:
        raise InvalidInput(f"result_json belongs to a run that ends as TERMINAL, not as {after.name}.")
    before, run = run, ended(run, after, detail_json, result_json)
    if dead_task_id:
        run = msgspec.structs.replace(run, dead_task_id=dead_task_id)
    tx.update("tape_runs", ("run_id",), STATE_COLUMNS, [state_row(run)])
    if after in UNDOING:
        tx.execute(
            f"UPDATE tape_obligations SET owed = {Owed.BECAUSE_RUN_FAILED} WHERE run_id = ?"
            f" AND owed = {Owed.IF_RUN_FAILS} AND status <> {ObligationStatus.COMPENSATED}",
            run_id,
        )
    elif before.status in UNDOING:  # the run has compensated itself and reports success
        _clear_owed(tx, run_id)
    subject_name, payload = describe_end(run)
    journal(tx, run, subject_name, payload | _facts(facts_json), trace)
    if after == RunStatus.CANCELLED and with_children:
        children().cancel_children(tx, run_id, trace=trace)
    if run.parent_run_id and after in ENDED:
        children().wake_parent(tx, run, trace)
    return with_cursor(tx, run)


def children() -> ModuleType:
    """The functions of child runs, which end runs themselves."""
    from tape.engine.ledgers import children  # here, because it imports this module

    return children


def _facts(facts_json: str) -> dict[str, Any]:
    facts = msgspec.json.decode(facts_json, type=dict[str, msgspec.Raw]) if facts_json else {}
    return {name: facts[name] for name in ("result", "result_bytes", "error") if name in facts}


def check_end(run: Run) -> None:
    """Raise RunRefused if the run is parked: its process does not end it, an operator may cancel it."""
    if run.status == RunStatus.WAITING:
        raise RunRefused(RunWaiting(f"{_describe_waiting(run)} An operator may cancel it: tape runs cancel."))


def ended(run: Run, after: RunStatus, detail_json: str, result_json: str = "") -> Run:
    """The run with this final status."""
    return msgspec.structs.replace(
        run,
        status=after,
        ended_at_ms=now_ms(),
        detail_json=detail_json,
        result_json=result_json,
        lease_owner="",
        lease_expires_at_ms=0,
        lease_caller="",
        waiting_on_gate="",
        former_status=_former(run, after),
    )


def describe_end(run: Run) -> tuple[str, dict[str, Any]]:
    """Subject and payload of the entry of a run that has ended."""
    verb = run.status.name.lower()
    payload = {"app": run.app_name, "user": run.user_id, "session": run.session_id, "status": verb}
    return subject_of(run, verb), payload


def park(tx: Transaction, run: Run, waiting_on: str, error: str, *, trace: Trace = NO_TRACE) -> None:
    """Let a run wait for something that is not a gate, and release its lease."""
    run = msgspec.structs.replace(
        run,
        status=RunStatus.WAITING,
        waiting_on_gate=waiting_on,
        lease_owner="",
        lease_expires_at_ms=0,
        lease_caller="",
    )
    tx.update("tape_runs", ("run_id",), STATE_COLUMNS, [state_row(run)])
    payload = {"app": run.app_name, "user": run.user_id, "session": run.session_id, "status": "waiting"}
    journal(tx, run, subject_of(run, "waiting"), payload | {"waiting_on": waiting_on, "error": error}, trace)


def reopen(tx: Transaction, run: Run, *, trace: Trace = NO_TRACE) -> None:
    """Make a failed run runnable again. Raises IllegalTransition if the run is being compensated."""
    _clear_obligations(tx, run)
    run = msgspec.structs.replace(
        run, status=RunStatus.RUNNABLE, ended_at_ms=0, detail_json="", former_status=0, dead_task_id=""
    )
    tx.update("tape_runs", ("run_id",), STATE_COLUMNS, [state_row(run)])
    payload = {"app": run.app_name, "user": run.user_id, "session": run.session_id, "status": "runnable"}
    journal(tx, run, subject_of(run, "running"), payload, trace)


def _former(run: Run, after: RunStatus) -> int:
    """The status that a run returns to when its compensation is complete."""
    if after not in (RunStatus.COMPENSATING, RunStatus.STUCK):
        return 0
    return int(run.status) if run.status in (RunStatus.FAILED, RunStatus.CANCELLED) else run.former_status


def subject_of(run: Run, verb: str) -> str:
    """The subject of what happened to a run."""
    return subject.run(verb, run.app_name, run.user_id, run.session_id, run.run_id)


# ── queries ─────────────────────────────────────────────────────────────────────────────


def list_recoverable(reader: Reader, *, app_name: str = "", now: int = 0, limit: int = 0) -> list[Run]:
    """List runs to recover: runnable, with an expired or void lease, or waiting for a signal that was delivered."""
    moment = now or now_ms()
    narrowed, params = (" AND app_name = ?", [app_name]) if app_name else (f" AND app_name <> '{PLAYBOOKS}'", [])
    of_tenant, tenant = _tenant_condition()
    narrowed, params = narrowed + of_tenant, [*params, *tenant]
    # SQLite would go through every execution that waits for a worker to find the few runs that are meant.
    by = " INDEXED BY tape_runs_to_recover" if reader.dialect == "sqlite" and not app_name else ""
    rows = reader.query(
        f"SELECT {LISTED_COLUMNS} FROM tape_runs{by}"
        f" WHERE status IN ({RunStatus.RUNNABLE}, {RunStatus.RUNNING}, {RunStatus.WAITING})"
        " AND (status = ? OR (status = ? AND (lease_expires_at_ms < ? OR lease_expires_at_ms > ?))"
        " OR (status = ? AND EXISTS (SELECT 1 FROM tape_signals s WHERE s.run_id = tape_runs.run_id"
        f"     AND s.gate_name = tape_runs.waiting_on_gate AND s.delivered = 1 AND s.consumed = 0))){narrowed}"
        " ORDER BY started_at_ms, run_id LIMIT ?",
        int(RunStatus.RUNNABLE),
        int(RunStatus.RUNNING),
        moment,
        latest_expiry_ms(moment),
        int(RunStatus.WAITING),
        *params,
        limit if limit > 0 else DEFAULT_LIMIT,
    )
    return load_all(Run, rows)


def list_newest_first(
    reader: Reader,
    *,
    app_name: str = "",
    user_id: str = "",
    session_id: str = "",
    status: int = 0,
    parent_run_id: str = "",
    before: tuple[int, str] = (0, ""),
    limit: int = 0,
) -> list[Run]:
    """List runs of all apps, an app, a user, a session or a parent, newest first, without their results.

    `before` is the last run of a page.
    """
    owner_ids = {"app_name": app_name, "user_id": user_id, "session_id": session_id}
    for outer, inner in (("app_name", "user_id"), ("user_id", "session_id")):
        if owner_ids[inner] and not owner_ids[outer]:
            raise InvalidInput(f"{inner} {owner_ids[inner]!r} needs the {outer} it belongs to.")
    if not (principal := current_principal()).sees_all_tenants:
        owner_ids["tenant"] = principal.tenant
    owner_ids["parent_run_id"] = parent_run_id
    conditions = [f"{name} = ?" for name, value in owner_ids.items() if value]
    params: list[Any] = [value for value in owner_ids.values() if value]
    if parent_run_id:
        conditions.append("parent_run_id <> ''")  # the condition of the index
    if before[0] > 0:
        conditions.append("(started_at_ms, run_id) < (?, ?)")
        params += before
    statuses: list[RunStatus | None] = [parse(RunStatus, "status", status)] if status else [None]
    # A user's runs are walked by time. An app's may be many and the state wanted rare, so its index has
    # the state before the time; without a state it is asked for each.
    by_status = "+status = ?" if user_id else "status = ?"
    if app_name and not user_id and not status and not parent_run_id:
        statuses = list(RunStatus)
    count = limit if limit > 0 else DEFAULT_LIMIT
    parts, values = [], []
    for number, each in enumerate(statuses):
        wanted = conditions if each is None else [*conditions, by_status]
        where = f" WHERE {' AND '.join(wanted)}" if wanted else ""
        parts.append(
            f"SELECT * FROM (SELECT {LISTED_COLUMNS} FROM tape_runs{where}{_NEWEST_FIRST} LIMIT ?) AS part{number}"
        )
        values += [*params, *([] if each is None else [int(each)]), count]
    return load_all(Run, reader.query(f"{' UNION ALL '.join(parts)}{_NEWEST_FIRST} LIMIT ?", *values, count))


_NEWEST_FIRST = " ORDER BY started_at_ms DESC, run_id DESC"


def find_newest_of_session(reader: Reader | Transaction, app_name: str, user_id: str, session_id: str) -> Run | None:
    """The run of a session that began last."""
    of_tenant, tenant = _tenant_condition()
    row = reader.one(
        f"SELECT {COLUMNS} FROM tape_runs WHERE app_name = ? AND user_id = ? AND session_id = ?{of_tenant}"
        f"{_NEWEST_FIRST} LIMIT 1",
        app_name,
        user_id,
        session_id,
        *tenant,
    )
    return load(Run, row)
