"""What retention removed: the last entry of each identity and type, so that readers hear of their own loss only."""

from __future__ import annotations

from collections.abc import Sequence

from tape.journal.type_column import type_sql
from tape.store import Reader, Transaction

# A row without a type stands for entries that were removed before types were recorded: any identity may have lost some.
UNRECORDED = ""


def record_pruned(tx: Transaction, oldest: int) -> None:
    """Record the entries below a global_seq, in the transaction that removes them."""
    kind = type_sql(tx.dialect)
    tx.execute(
        'INSERT INTO tape_pruned_types (tenant, "user", session, type, last_seq)'
        f' SELECT tenant, "user", session, {kind}, max(global_seq) FROM tape_journal WHERE global_seq < ?'
        f' GROUP BY tenant, "user", session, {kind}'
        ' ON CONFLICT (tenant, "user", session, type) DO UPDATE SET last_seq = excluded.last_seq',
        oldest,
    )


def pruned_types(reader: Reader, identities: Sequence[tuple[str, str, str]], after: int) -> list[str] | None:
    """The types of which an identity lost an entry after a global_seq; None if that was not recorded."""
    sql = 'SELECT type FROM tape_pruned_types WHERE tenant = ? AND "user" = ? AND session = ? AND last_seq > ?'
    found = [row[0] for identity in identities for row in reader.query(sql, *identity, after)]
    unrecorded = "SELECT 1 FROM tape_pruned_types WHERE tenant = '' AND \"user\" = '' AND session = '' AND type = ''"
    return None if reader.one(f"{unrecorded} AND last_seq > ?", after) is not None else found
