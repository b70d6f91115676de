"""How much happened: entries by ten seconds, identity and type, folded from the journal after the fact.

The journal is not held up by counting: a fold reads what is new on a reader's connection and writes a few sums.
Whatever was not folded yet, and the ten seconds that a bucket's edge cuts in two, are counted from the journal itself,
in the same statement: the answer is always that of counting the journal.

Questions about whole tenants are answered from the minutes, hours and days of the rollups, where these are complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tape.engine.ledgers.rollups import WIDTHS_MS, read_position
from tape.engine.ledgers.window import MS, SLOT_MS, Cover, Ranges, Window, cover_window, divide_up
from tape.journal.appender import read_head
from tape.journal.epochs import read_holes
from tape.journal.identity_filter import IdentityFilter
from tape.journal.reader import position_before
from tape.journal.type_column import type_sql
from tape.store import Database, Reader, Transaction
from tape.store.connection import Dialect, Row

SLOT_NS = SLOT_MS * MS
FOLD_ENTRIES = 20_000


# ── folding ──────────────────────────────────────────────────────────────────────────────────────


class Fold(msgspec.Struct, frozen=True):
    """Sums over the entries after one global_seq up to another."""

    after: int
    until: int
    counts: list[Row]
    slots: list[Row]


async def fold(database: Database) -> bool:
    """Count the next entries that were not counted yet; False if there are none."""
    found = await database.read(_read_fold)
    if found.until <= found.after:
        return False
    await database.write(lambda tx: _write_fold(tx, found))
    return True


def _read_fold(reader: Reader) -> Fold:
    row = reader.one(
        "SELECT c.global_seq, h.global_seq, h.oldest FROM tape_counted c, tape_head h WHERE c.id = 1 AND h.id = 1"
    )
    assert row is not None, "the migration puts the rows there"
    after = max(row[0], row[2] - 1)
    until = read_holes(reader, read_head(reader)).skip(min(row[1], after + FOLD_ENTRIES))
    condition = "FROM tape_journal WHERE global_seq > ? AND global_seq <= ?"
    counts = reader.query(
        f'SELECT ts_ms / {SLOT_MS}, tenant, "user", session, {type_sql(reader.dialect)}, count(*) {condition}'
        " GROUP BY 1, 2, 3, 4, 5",
        after,
        until,
    )
    slots = reader.query(
        f"SELECT ts_ms / {SLOT_MS}, min(global_seq), max(global_seq) {condition} GROUP BY 1", after, until
    )
    return Fold(row[0], until, counts, slots)


def _write_fold(tx: Transaction, fold: Fold) -> None:
    """Add the sums, unless another process has done so meanwhile."""
    advance = "UPDATE tape_counted SET global_seq = ? WHERE id = 1 AND global_seq = ?"
    if tx.execute(advance, fold.until, fold.after) != 1:
        return
    tx.insert("tape_counts", ("slot", "tenant", '"user"', "session", "type", "entries"), fold.counts)
    tx.insert("tape_slots", ("slot", "first_seq", "last_seq"), fold.slots)


# ── asking ───────────────────────────────────────────────────────────────────────────────────────


class Count(msgspec.Struct, frozen=True):
    """So many entries of a type in a bucket."""

    bucket: int
    type: str
    tenant: str
    entries: int


def count(
    reader: Reader, window: Window, identity: IdentityFilter, types: Sequence[str] = (), runs: Sequence[str] = ()
) -> list[Count]:
    """Entries by bucket, type and tenant: one statement, and so one moment."""
    if window.high_ms <= window.low_ms:
        return []
    sql, params = _runs_sql(reader, window, identity, runs) if runs else _sql(reader, window, identity)
    condition = ""
    if types:
        among, names = reader.is_any("type", types)
        condition, params = f" WHERE {among}", [*params, names]
    rows = reader.query(
        f"SELECT bucket, type, tenant, sum(n) FROM ({sql}) AS parts{condition} GROUP BY bucket, type, tenant", *params
    )
    return [Count(int(bucket), kind, tenant, int(entries)) for bucket, kind, tenant, entries in rows]


def count_subjects(
    reader: Reader, window: Window, identity: IdentityFilter, types: Sequence[str], runs: Sequence[str], limit: int
) -> list[Row]:
    """Entries of the types in the journal, by bucket, type, tenant and subject; `limit` rows at most."""
    if window.high_ms <= window.low_ms:
        return []
    low, high = position_before(reader, window.low_ms), position_before(reader, window.high_ms)
    identity_sql, identity_params = identity.condition(reader, by_index=identity.is_one_session)
    among_types, names = reader.is_any("type", types)
    among_runs, run_ids = reader.is_any("run_id", runs) if runs else ("1 = 1", None)
    return reader.query(
        f"SELECT bucket, type, tenant, subject, count(*) FROM (SELECT (ts_ms * {MS} - ?) / ? AS bucket,"
        f" {type_sql(reader.dialect)} AS type, tenant, subject FROM tape_journal"
        f" WHERE global_seq > ? AND global_seq <= ? AND {among_runs} AND {identity_sql}) AS entries"
        f" WHERE {among_types} GROUP BY 1, 2, 3, 4 LIMIT ?",
        window.start_ns,
        window.bucket_ns,
        low,
        high,
        *([run_ids] if runs else []),
        *identity_params,
        names,
        limit,
    )


def _sql(reader: Reader, window: Window, identity: IdentityFilter) -> tuple[str, list[Any]]:
    widths = tuple(WIDTHS_MS.values())
    complete = read_position(reader).complete if identity.is_tenant_only else (0, 0)
    covered = cover_window(window, widths, complete) if complete[1] > complete[0] else cover_window(window)
    rolled_up = covered.ranges_of(widths)
    parts = [
        _rollups_sql(reader, window, identity, width, found) for width in widths if (found := covered.ranges.get(width))
    ]
    parts.append(
        _slots_sql(reader, window, identity, covered)
        if rolled_up
        else _all_slots_sql(reader, window, identity, covered)
    )
    parts += [_cut_slots_sql(reader, window, identity, covered), _not_folded_sql(reader, window, identity, rolled_up)]
    return " UNION ALL ".join(sql for sql, _ in parts), [param for _, params in parts for param in params]


def _rollups_sql(
    reader: Reader, window: Window, identity: IdentityFilter, width: int, found: Ranges
) -> tuple[str, list[Any]]:
    """What the rollups of one width know."""
    identity_sql, identity_params = identity.condition(reader, by_index=False)
    pairs, values = reader.pairs(found)
    return (
        f"SELECT (start_ms * {MS} - ?) / ? AS bucket, type, tenant, sum(entries) AS n"
        f" FROM {pairs} CROSS JOIN tape_rollups WHERE width_ms = {width} AND start_ms >= low AND start_ms < high"
        f" AND start_ms >= ? AND start_ms < ? AND {identity_sql} GROUP BY 1, 2, 3",
        [window.start_ns, window.bucket_ns, values, *_ends(found), *identity_params],
    )


def _slots_sql(reader: Reader, window: Window, identity: IdentityFilter, covered: Cover) -> tuple[str, list[Any]]:
    """What the slots between the rollups know."""
    identity_sql, identity_params = identity.condition(reader, by_index=False)
    found = [(low // SLOT_MS, high // SLOT_MS) for low, high in covered.ranges[SLOT_MS]]
    pairs, values = reader.pairs(found)
    return (
        f"SELECT (slot * {SLOT_NS} - ?) / ? AS bucket, type, tenant, sum(entries) AS n"
        f" FROM {pairs} CROSS JOIN tape_counts"
        f" WHERE slot >= low AND slot < high AND slot >= ? AND slot < ? AND {identity_sql} GROUP BY 1, 2, 3",
        [window.start_ns, window.bucket_ns, values, *_ends(found), *identity_params],
    )


def _ends(found: Ranges) -> tuple[int, int]:
    """Where ranges begin and end: PostgreSQL cannot see how little of a table they are."""
    return (found[0][0], found[-1][1]) if found else (0, 0)


def _all_slots_sql(reader: Reader, window: Window, identity: IdentityFilter, covered: Cover) -> tuple[str, list[Any]]:
    """What all slots know that no edge cuts."""
    identity_sql, identity_params = identity.condition(reader)
    cut, cuts = _cut_condition(reader, covered)
    return (
        f"SELECT (slot * {SLOT_NS} - ?) / ? AS bucket, type, tenant, sum(entries) AS n FROM tape_counts"
        f" WHERE {identity_sql} AND slot >= ? AND slot < ? AND NOT ({cut}) GROUP BY 1, 2, 3",
        [
            window.start_ns,
            window.bucket_ns,
            *identity_params,
            divide_up(window.low_ms, SLOT_MS),
            divide_up(window.high_ms, SLOT_MS),
            cuts,
        ],
    )


def _cut_slots_sql(reader: Reader, window: Window, identity: IdentityFilter, covered: Cover) -> tuple[str, list[Any]]:
    """The entries of slots that belong to the window or to one of its buckets only in part."""
    identity_sql, identity_params = identity.condition(reader, by_index=identity.is_one_session)
    cut, cuts = _cut_condition(reader, covered)
    sql = _journal_sql(
        reader.dialect,
        f"(SELECT first_seq, last_seq FROM tape_slots WHERE {cut}) AS m"
        " CROSS JOIN tape_journal WHERE global_seq >= first_seq AND global_seq <= last_seq",
        identity_sql,
    )
    return sql, [window.start_ns, window.bucket_ns, cuts, window.low_ms, window.high_ms, *identity_params]


def _not_folded_sql(
    reader: Reader, window: Window, identity: IdentityFilter, rolled_up: Ranges
) -> tuple[str, list[Any]]:
    """The entries that are in no slot yet, and in no rollup."""
    identity_sql, identity_params = identity.condition(reader, by_index=identity.is_one_session)
    if rolled_up:
        pairs, values = reader.pairs(rolled_up)
        identity_sql += f" AND NOT EXISTS (SELECT 1 FROM {pairs} WHERE ts_ms >= low AND ts_ms < high)"
        identity_params = [*identity_params, values]
    newer = "tape_journal WHERE global_seq > (SELECT global_seq FROM tape_counted WHERE id = 1)"
    sql = _journal_sql(reader.dialect, newer, identity_sql)
    return sql, [window.start_ns, window.bucket_ns, window.low_ms, window.high_ms, *identity_params]


def _cut_condition(reader: Reader, covered: Cover) -> tuple[str, Any]:
    return reader.is_any("slot", covered.cut_slots or [-1])  # type: ignore[arg-type]  # numbers do as well


def _runs_sql(reader: Reader, window: Window, identity: IdentityFilter, runs: Sequence[str]) -> tuple[str, list[Any]]:
    identity_sql, identity_params = identity.condition(reader, by_index=False)
    among, names = reader.is_any("run_id", runs)
    params = [names]
    if identity.tenants is not None:  # by the index: other tenants may have any number of entries under the run id
        of_tenants, tenants = reader.is_any("tenant", identity.tenants)
        among, params = f"{among} AND {of_tenants}", [names, tenants]
    sql = _journal_sql(reader.dialect, f"tape_journal WHERE {among}", identity_sql)
    return sql, [window.start_ns, window.bucket_ns, *params, window.low_ms, window.high_ms, *identity_params]


def _journal_sql(dialect: Dialect, source: str, identity_sql: str) -> str:
    return (
        f"SELECT (ts_ms * {MS} - ?) / ? AS bucket, {type_sql(dialect)} AS type, tenant, count(*) AS n"
        f" FROM {source} AND ts_ms >= ? AND ts_ms < ? AND {identity_sql} GROUP BY 1, 2, 3"
    )
