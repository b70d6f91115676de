"""The lease of a row: its owner and the time when it expires. One rule for all tables that have one."""

from __future__ import annotations

from typing import Any, NamedTuple

from tape.base.clock import latest_ms
from tape.base.owner import server_prefix
from tape.errors import InvalidInput
from tape.store.transaction import Transaction

MAX_TTL_MS = 24 * 3_600_000


class Lease(NamedTuple):
    """The right of one owner to a row until `expires_at_ms`. Without an owner the row is free.

    A lease that expires later than the longest one that can be granted now is void: the clock was ahead when it was
    granted.
    """

    owner: str = ""
    expires_at_ms: int = 0

    def is_free(self, now: int, max_ttl_ms: int = MAX_TTL_MS) -> bool:
        """Whether any owner may take the lease: it has none, or it has expired or is void."""
        return not self.owner or not now < self.expires_at_ms <= latest_expiry_ms(now, max_ttl_ms)

    def is_open_to(self, owner: str, now: int, max_ttl_ms: int = MAX_TTL_MS) -> bool:
        """Whether this owner may take or renew the lease."""
        return self.owner == owner or self.is_free(now, max_ttl_ms)


def latest_expiry_ms(now: int, max_ttl_ms: int = MAX_TTL_MS) -> int:
    """The latest time at which a valid lease expires; one that expires later is void."""
    return latest_ms(now, max_ttl_ms)


def expiry_ms(now: int, ttl_ms: int, default_ttl_ms: int) -> int:
    """When a lease that is granted now expires; a `ttl_ms` of 0 or less means the default. Raises InvalidInput."""
    if ttl_ms > MAX_TTL_MS:
        raise InvalidInput(f"a lease of {ttl_ms} ms is too long; {MAX_TTL_MS} ms, 24 hours, are the most.")
    return now + (ttl_ms if ttl_ms > 0 else default_ttl_ms)


def former_owners(column: str, owner: str) -> tuple[str, tuple[str, ...]]:
    """The condition that a column names a former process of this owner's server, and its parameters.

    A server that begins need not wait for the leases of its former process. A process may release them once, before
    its first lease: a former process that is still alive, because it was stopped, must not take them back.
    """
    prefix = server_prefix(owner)
    if not prefix:
        return "FALSE", ()
    return f"substr({column}, 1, {len(prefix)}) = ? AND {column} <> ?", (prefix, owner)


class LeaseTable(NamedTuple):
    """A table whose rows are leased by UPDATE, and the names of its two columns. Released names stay as they are."""

    name: str
    owner: str
    expires_at_ms: str

    def grant(self, tx: Transaction, lease: Lease, where: str, *parameters: Any) -> int:
        """Write a lease to the rows that match; returns their number."""
        return tx.execute(
            f"UPDATE {self.name} SET {self.owner} = ?, {self.expires_at_ms} = ? WHERE {where}", *lease, *parameters
        )

    def release_former(self, tx: Transaction, owner: str) -> int:
        """Free the rows that former processes of this owner's server have leased; returns their number."""
        is_former, parameters = former_owners(self.owner, owner)
        return self.grant(tx, Lease(), is_former, *parameters)

    def release(self, tx: Transaction, owner: str, where: str = "TRUE", *parameters: Any) -> int:
        """Free the rows that match and that this owner has leased; returns their number."""
        return self.grant(tx, Lease(), f"({where}) AND {self.owner} = ?", *parameters, owner)
