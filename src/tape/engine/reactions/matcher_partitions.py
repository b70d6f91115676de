"""Lanes: which server matches which shards, and how far each lane has come.

A lease only divides the work. What keeps a match from happening twice is that a step names the
position it starts from and is refused inside its transaction unless the lane stands exactly there.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tape.base.clock import now_ms
from tape.engine.reactions.registry import read_version
from tape.engine.reactions.shards import LANES
from tape.store import Transaction

LEASE_MS = 10_000


class Holding(msgspec.Struct, frozen=True):
    """The lanes of one server with their positions, and the registry's last change."""

    positions: dict[int, int]
    version: int


def tend(tx: Transaction, owner: str, lease_ms: int = LEASE_MS) -> Holding:
    """Renew this server's leases and take its fair share of the lanes; what is too much is given back."""
    now = now_ms()
    expires = now + lease_ms
    tx.execute("DELETE FROM tape_matchers WHERE expires_at_ms <= ?", now)
    tx.upsert("tape_matchers", ["owner"], ["owner", "expires_at_ms"], [(owner, expires)])
    servers = sorted(row[0] for row in tx.query("SELECT owner FROM tape_matchers"))
    share = len(range(servers.index(owner), LANES, len(servers)))
    mine, free = [], []
    for lane, holder, until in tx.query("SELECT lane, owner, expires_at_ms FROM tape_reaction_lanes ORDER BY lane"):
        if holder == owner:
            mine.append(lane)
        elif not holder or until <= now:
            free.append(lane)
    kept = mine[:share] + free[: max(share - len(mine), 0)]
    for lane in mine[share:]:
        tx.execute("UPDATE tape_reaction_lanes SET owner = '', expires_at_ms = 0 WHERE lane = ?", lane)
    if kept:
        numbers = ", ".join(map(str, kept))
        tx.execute(
            f"UPDATE tape_reaction_lanes SET owner = ?, expires_at_ms = ? WHERE lane IN ({numbers})", owner, expires
        )
    return held(tx, owner)


def release(tx: Transaction, owner: str) -> None:
    """Give everything back, so that others need not wait for the leases to run out."""
    tx.execute("UPDATE tape_reaction_lanes SET owner = '', expires_at_ms = 0 WHERE owner = ?", owner)
    tx.execute("DELETE FROM tape_matchers WHERE owner = ?", owner)


def held(tx: Transaction, owner: str) -> Holding:
    """What this server holds according to the database."""
    rows = tx.query("SELECT lane, position FROM tape_reaction_lanes WHERE owner = ?", owner)
    return Holding(dict(rows), read_version(tx))


def tidy(tx: Transaction, places: Mapping[int, int]) -> None:
    """Bring the cursors of shards that had nothing to do up to their lanes, for those who look at the table."""
    now = now_ms()
    for lane, position in places.items():
        tx.execute(
            "UPDATE tape_reaction_cursors SET last_global_seq = ?, last_processed_at_ms = ?"
            " WHERE lane = ? AND behind = 0 AND last_global_seq < ?",
            position,
            now,
            lane,
            position,
        )
