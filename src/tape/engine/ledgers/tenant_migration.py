"""Moving runs, values, sessions and tasks from one tenant to another: for data from before callers had tenants.

Entries of the journal keep their tenant, which is inside the hash chain.
"""

from __future__ import annotations

from tape.errors import InvalidInput
from tape.model.entry import check_id
from tape.store import Transaction

# Each table with a tenant, and the columns that name a row within its tenant.
_TABLES = {
    "tape_runs": ("app_name", "user_id", "session_id", "invocation_id"),
    "tape_effects": (),
    "tape_values": ("namespace", "key"),
    "tape_sessions": ("app_name", "user_id", "session_id"),
    "tape_events": ("app_name", "user_id", "session_id", "ord"),
    "tape_scoped_state": ("app_name", "scope", "scope_key", "key"),
    "tape_tasks": (),
}


def move_tenant(tx: Transaction, old: str, new: str) -> dict[str, int]:
    """Give what belongs to `old` (empty: to no tenant) to `new`; the number of rows of each table.

    InvalidInput if both have something of the same name: nothing is moved then.
    """
    check_id("from", old)
    check_id("to", new)
    if not new or new == old:
        raise InvalidInput(f"--to {new!r} must name a tenant other than --from {old!r}.")
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
    return {table: tx.execute(f"UPDATE {table} SET tenant = ? WHERE tenant = ?", new, old) for table in _TABLES}
