"""Rollups: how many entries of each tenant and type there were per minute, hour and day.

A round counts a stretch of the journal and adds it to the tables in the same transaction that moves the
position, so that each entry is counted once, whoever is killed and however many jobs run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from tape.store import Reader, Transaction

WIDTHS_MS = {"minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
_COLUMNS = ("width_ms", "start_ms", "tenant", "type", "entries", "bytes")
_KEYS = _COLUMNS[:4]


class Rollup(msgspec.Struct, frozen=True):
    """The entries of one tenant and type in one window, and the bytes of their payloads."""

    start_ms: int
    tenant: str
    type: str
    entries: int
    bytes: int


def rolled_up_to(reader: Reader | Transaction) -> int:
    """The last global_seq that is counted."""
    row = reader.one("SELECT global_seq FROM tape_rollup_position WHERE id = 1")
    assert row is not None, "the migration puts the row there"
    return int(row[0])


def read_rollups(reader: Reader, width: str, since_ms: int, until_ms: int) -> list[Rollup]:
    """The windows of a width that begin within a time, in order."""
    rows = reader.query(
        "SELECT start_ms, tenant, type, entries, bytes FROM tape_rollups"
        " WHERE width_ms = ? AND start_ms >= ? AND start_ms < ? ORDER BY start_ms, tenant, type",
        WIDTHS_MS[width],
        since_ms,
        until_ms,
    )
    return [Rollup(*row) for row in rows]


def add_rollups(tx: Transaction, minutes: Iterable[Rollup], after: int, until: int) -> bool:
    """Add the minutes of a stretch to all widths; does nothing if another job has counted from there."""
    if rolled_up_to(tx) != after:
        return False
    sums: dict[tuple[int, int, str, str], list[int]] = defaultdict(lambda: [0, 0])
    for one in minutes:
        for width in WIDTHS_MS.values():
            total = sums[width, one.start_ms // width * width, one.tenant, one.type]
            total[0] += one.entries
            total[1] += one.bytes
    for key, total in sums.items():
        row = tx.one(
            "SELECT entries, bytes FROM tape_rollups WHERE width_ms = ? AND start_ms = ? AND tenant = ? AND type = ?",
            *key,
        )
        if row is not None:
            total[0] += row[0]
            total[1] += row[1]
    tx.upsert("tape_rollups", _KEYS, _COLUMNS, [(*key, *total) for key, total in sums.items()])
    tx.execute("UPDATE tape_rollup_position SET global_seq = ? WHERE id = 1", until)
    return True
