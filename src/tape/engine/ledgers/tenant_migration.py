"""Moving runs, values, sessions and tasks from one tenant to another: for data from before callers had tenants.

Entries of the journal keep their tenant, which is inside the hash chain. The old name becomes an alias, so that the new
tenant sees them, and goes on in their runs above the last seq.
"""

from __future__ import annotations

import msgspec

from tape.base.clock import now_ms
from tape.engine.security.audit import RUN
from tape.engine.security.tenant_aliases import read_owners
from tape.errors import InvalidInput
from tape.journal.appender import append
from tape.model import subject
from tape.model.entry import SYSTEM_TENANT, Draft, check_id
from tape.store import Transaction

# Reads look for each former name of a tenant.
MAX_FORMER_NAMES = 64

# Each table with a tenant, and the columns that name a row within its tenant.
_TABLES = {
    "tape_runs": ("app_name", "user_id", "session_id", "invocation_id"),
    "tape_effects": (),
    "tape_signals": (),
    "tape_schedules": ("name",),
    "tape_values": ("namespace", "key"),
    "tape_sessions": ("app_name", "user_id", "session_id"),
    "tape_events": ("app_name", "user_id", "session_id", "ord"),
    "tape_scoped_state": ("app_name", "scope", "scope_key", "key"),
    "tape_tasks": (),
}


def move_tenant(tx: Transaction, old: str, new: str) -> dict[str, int]:
    """Give what belongs to `old` (empty: to no tenant) to `new`; the number of rows of each table.

    InvalidInput if both have something of the same name, or the entries cannot be given: nothing is moved then. The
    move is journaled.
    """
    check_id("from", old)
    check_id("to", new)
    if not new or new == old:
        raise InvalidInput(f"--to {new!r} must name a tenant other than --from {old!r}.")
    _check_alias(tx, old, new)
    for table, names in _TABLES.items():
        if not names:
            continue
        same = " AND ".join(f"mine.{name} = theirs.{name}" for name in names)
        row = tx.one(
            f"SELECT count(*) FROM {table} mine JOIN {table} theirs ON {same}"
            " WHERE mine.tenant = ? AND theirs.tenant = ?",
            old,
            new,
        )
        if row and row[0]:
            raise InvalidInput(
                f"{row[0]} rows of {table} have the same name in {old!r} and in {new!r}; nothing was moved."
                " Delete or rename one of each first."
            )
    moved = {table: tx.execute(f"UPDATE {table} SET tenant = ? WHERE tenant = ?", new, old) for table in _TABLES}
    _continue_runs(tx, old, new)
    tx.execute("UPDATE tape_tenant_aliases SET owner = ? WHERE owner = ?", new, old)
    alias = (old, new, now_ms())
    tx.upsert("tape_tenant_aliases", ("tenant",), ("tenant", "owner", "created_at_ms"), [alias])
    # Servers drop the run heads that they have in memory when the head of the journal has changed.
    rows = {table: count for table, count in moved.items() if count}
    payload_json = msgspec.json.encode({"From": old, "To": new, "Rows": rows}).decode()
    append(
        tx, [Draft(subject=subject.build("audit", "tenant_moved"), kind="audit", run_id=RUN, payload_json=payload_json)]
    )
    return moved


def _check_alias(tx: Transaction, old: str, new: str) -> None:
    if SYSTEM_TENANT in (old, new):
        raise InvalidInput(f"{SYSTEM_TENANT!r} is the tenant of what Tape itself writes; it owns and gives nothing.")
    owners = read_owners(tx)
    if new in owners:
        raise InvalidInput(f"--to {new!r} was itself given to {owners[new]!r}; nothing was moved. Name that tenant.")
    if owners.get(old, new) != new:
        raise InvalidInput(f"The entries of {old!r} belong to {owners[old]!r} already; nothing was moved.")
    names = {tenant for tenant, owner in owners.items() if owner in (old, new)} | {old}
    if len(names) > MAX_FORMER_NAMES:
        raise InvalidInput(
            f"{new!r} would have {len(names)} former names; {MAX_FORMER_NAMES} is the limit. Nothing was moved."
        )


def _continue_runs(tx: Transaction, old: str, new: str) -> None:
    """Let the new tenant go on in the runs of the old one, above the last seq of both."""
    larger = "max" if tx.dialect == "sqlite" else "greatest"
    tx.execute(
        "INSERT INTO tape_run_heads (run_id, tenant, seq) SELECT run_id, ?, seq FROM tape_run_heads WHERE tenant = ?"
        f" ON CONFLICT (run_id, tenant) DO UPDATE SET seq = {larger}(tape_run_heads.seq, excluded.seq)",
        new,
        old,
    )
