"""Matcher partitions: which server matches which shards, and the position of each partition.

A lease only divides the work. A match cannot happen twice because a step names the position it starts from,
and its transaction rejects it unless the partition is exactly there.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tape.base.clock import now_ms
from tape.engine.reactions.registry import read_version
from tape.engine.reactions.shards import PARTITIONS
from tape.store import Transaction
from tape.store.lease import Lease, LeaseTable, former_owners, latest_expiry_ms

LEASE_MS = 10_000
_LEASES = LeaseTable("tape_reaction_lanes", "owner", "expires_at_ms")


class LeasedPartitions(msgspec.Struct, frozen=True):
    """The positions of a server's matcher partitions, and the version of the registry."""

    positions: dict[int, int]
    version: int


def lease_partitions(tx: Transaction, owner: str, lease_ms: int = LEASE_MS) -> LeasedPartitions:
    """Renew this server's leases, lease its fair share of the partitions and release those beyond it."""
    now = now_ms()
    expires = now + lease_ms
    latest = latest_expiry_ms(now, LEASE_MS)
    tx.execute("DELETE FROM tape_matchers WHERE expires_at_ms <= ? OR expires_at_ms > ?", now, latest)
    tx.upsert("tape_matchers", ["owner"], ["owner", "expires_at_ms"], [(owner, expires)])
    servers = sorted(row[0] for row in tx.query("SELECT owner FROM tape_matchers"))
    share = len(range(servers.index(owner), PARTITIONS, len(servers)))
    mine, free = [], []
    for partition, lease_owner, lease_expires_at_ms in tx.query(
        "SELECT lane, owner, expires_at_ms FROM tape_reaction_lanes ORDER BY lane"
    ):
        if lease_owner == owner:
            mine.append(partition)
        elif Lease(lease_owner, lease_expires_at_ms).is_free(now, LEASE_MS):
            free.append(partition)
    kept = mine[:share] + free[: max(share - len(mine), 0)]
    for partition in mine[share:]:
        _LEASES.release(tx, owner, "lane = ?", partition)
    if kept:
        numbers = ", ".join(map(str, kept))
        _LEASES.grant(tx, Lease(owner, expires), f"lane IN ({numbers})")
    return read_leased(tx, owner)


def release_former_partitions(tx: Transaction, owner: str) -> int:
    """Release the partitions of former processes of this server, before its first lease; returns their number.

    A former process that is still alive is rejected when it writes a step, and leases its share as any other server.
    """
    is_former, parameters = former_owners("owner", owner)
    tx.execute(f"DELETE FROM tape_matchers WHERE {is_former}", *parameters)
    return _LEASES.release_former(tx, owner)


def release_partitions(tx: Transaction, owner: str) -> None:
    """Release all partitions of a server, so that others need not wait until the leases expire."""
    _LEASES.release(tx, owner)
    tx.execute("DELETE FROM tape_matchers WHERE owner = ?", owner)


def read_leased(tx: Transaction, owner: str) -> LeasedPartitions:
    """The partitions that the database has as leased to this server."""
    rows = tx.query("SELECT lane, position FROM tape_reaction_lanes WHERE owner = ?", owner)
    return LeasedPartitions(dict(rows), read_version(tx))


def advance_idle_cursors(tx: Transaction, positions: Mapping[int, int]) -> None:
    """Advance the cursors of idle shards to the positions of their partitions, for operators who read the table."""
    now = now_ms()
    for partition, position in positions.items():
        tx.execute(
            "UPDATE tape_reaction_cursors SET last_global_seq = ?, last_processed_at_ms = ?"
            " WHERE lane = ? AND behind = 0 AND last_global_seq < ?",
            position,
            now,
            partition,
            position,
        )
