"""Schedules by name: create, list, pause, delete, trigger. Plain functions on a transaction."""

from __future__ import annotations

from typing import Any

import msgspec

from tape.base.clock import now_ms
from tape.engine.ledgers.gates import name_of_caller
from tape.engine.scheduler import CHANNEL
from tape.engine.schedules.schedule import SPEC, Schedule, check
from tape.errors import InvalidInput, NotFound, ScheduleExists
from tape.journal.appender import append
from tape.model import subject
from tape.model.entry import Draft, check_id
from tape.model.principal import current_principal
from tape.model.tenant_names import qualify, tenant_of
from tape.store import Reader, Transaction
from tape.store.records import columns, load, load_all, store

MAX_SCHEDULES = 1_000
DEFAULT_LIMIT, MAX_LIMIT = 100, 1_000
COLUMNS = columns(Schedule)
KEYS = ("tenant", "name")


def create(tx: Transaction, wanted: Schedule, *, replace: bool = False) -> Schedule:
    """Create a schedule, or replace it. The same one again changes nothing; ScheduleExists if it is another."""
    path = qualify(wanted.playbook)
    tenant = tenant_of(path) or own_tenant()
    wanted = msgspec.structs.replace(wanted, tenant=tenant, playbook=path)
    check(wanted)
    now = now_ms()
    before = _load(tx, tenant, wanted.name)
    if before is not None:
        if all(getattr(before, name) == getattr(wanted, name) for name in SPEC):
            return before
        if not replace:
            raise ScheduleExists(
                f"The schedule {wanted.name!r} exists with other settings. Use replace, or another name."
            )
        changed = msgspec.structs.replace(before, **{name: getattr(wanted, name) for name in SPEC})
        return _save(tx, changed.planned(now, now), "updated")
    row = tx.one("SELECT count(*) FROM tape_schedules WHERE tenant = ?", tenant)
    if row and row[0] >= MAX_SCHEDULES:
        raise InvalidInput(f"{MAX_SCHEDULES} schedules exist, which is the limit of a tenant; delete one first.")
    wanted = msgspec.structs.replace(wanted, created_at_ms=now, created_by=name_of_caller())
    return _save(tx, wanted.planned(now, now), "created")


def get(reader: Reader | Transaction, name: str) -> Schedule:
    """The schedule of that name; NotFound if there is none."""
    check_id("name", name)
    found = _load(reader, own_tenant(), name)
    if found is None and current_principal().sees_all_tenants:
        # The owner of an open server sees all: the name alone finds it, unless two tenants have it.
        rows = reader.query(f"SELECT {COLUMNS} FROM tape_schedules WHERE name = ? LIMIT 2", name)
        found = load(Schedule, rows[0]) if len(rows) == 1 else None
    if found is None:
        raise NotFound(f"no such schedule: {name!r}.")
    return found


def list_schedules(reader: Reader, *, after: str = "", limit: int = 0) -> list[Schedule]:
    """Schedules by name, after a name."""
    check_id("after", after)
    if not 0 <= limit <= MAX_LIMIT:
        raise InvalidInput(f"limit {limit} must lie between 0 and {MAX_LIMIT}; 0 means {DEFAULT_LIMIT}.")
    tenant = current_principal().only_tenant
    condition, params = (" AND tenant = ?", [tenant]) if tenant is not None else ("", [])
    rows = reader.query(
        f"SELECT {COLUMNS} FROM tape_schedules WHERE name > ?{condition} ORDER BY name, tenant LIMIT ?",
        after,
        *params,
        limit or DEFAULT_LIMIT,
    )
    return load_all(Schedule, rows)


def pause(tx: Transaction, name: str, *, paused: bool) -> Schedule:
    """Pause a schedule, or resume it: what it would have begun meanwhile is not made up."""
    schedule = get(tx, name)
    if schedule.paused == paused:
        return schedule
    now = now_ms()
    changed = msgspec.structs.replace(schedule, paused=paused).planned(now, now)
    return _save(tx, changed, "paused" if paused else "resumed")


def delete(tx: Transaction, name: str) -> bool:
    """Delete a schedule; runs that it has begun go on. False if there is none."""
    try:
        schedule = get(tx, name)
    except NotFound:
        return False
    tx.execute("DELETE FROM tape_schedules WHERE tenant = ? AND name = ?", schedule.tenant, name)
    journal(tx, schedule, "deleted", {"by": name_of_caller()})
    return True


def own_tenant() -> str:
    """The tenant of what the caller creates; empty for the owner of an open server."""
    return current_principal().tenant_for("")


def journal(tx: Transaction, schedule: Schedule, verb: str, payload: dict[str, Any]) -> None:
    """Append an entry about a schedule, to a run of its own."""
    described = {"schedule": schedule.name, "status": verb, **payload}
    append(
        tx,
        [
            Draft(
                subject=subject.build("schedule", verb, schedule.name),
                kind="schedule",
                run_id=f"schedule:{schedule.name}",
                payload_json=msgspec.json.encode(described).decode(),
                tenant=schedule.tenant,
            )
        ],
    )


def _save(tx: Transaction, schedule: Schedule, verb: str) -> Schedule:
    store(tx, "tape_schedules", KEYS, schedule)
    tx.notify(CHANNEL)
    spec = {name: getattr(schedule, name) for name in SPEC if name != "input_json"}
    journal(tx, schedule, verb, {**spec, "next_ms": schedule.nominal_ms, "by": name_of_caller()})
    return schedule


def _load(reader: Reader | Transaction, tenant: str, name: str) -> Schedule | None:
    row = reader.one(f"SELECT {COLUMNS} FROM tape_schedules WHERE tenant = ? AND name = ?", tenant, name)
    return load(Schedule, row)
