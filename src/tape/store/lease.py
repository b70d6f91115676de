"""The lease of a row: its owner and the time when it expires. One rule for all tables that have one."""

from __future__ import annotations

from typing import Any, NamedTuple

from tape.errors import InvalidInput
from tape.store.transaction import Transaction

MAX_TTL_MS = 100 * 366 * 86_400_000


class Lease(NamedTuple):
    """The right of one owner to a row until `expires_at_ms`. Without an owner the row is free."""

    owner: str = ""
    expires_at_ms: int = 0

    def is_free(self, now: int) -> bool:
        """Whether any owner may take the lease: it has none, or it has expired."""
        return not self.owner or self.expires_at_ms <= now

    def is_open_to(self, owner: str, now: int) -> bool:
        """Whether this owner may take or renew the lease."""
        return self.owner == owner or self.is_free(now)


def expiry_ms(now: int, ttl_ms: int, default_ttl_ms: int) -> int:
    """When a lease that is granted now expires; a `ttl_ms` of 0 or less means the default. Raises InvalidInput."""
    if ttl_ms > MAX_TTL_MS:
        raise InvalidInput(f"a lease of {ttl_ms} ms is too long; {MAX_TTL_MS} ms, 100 years, are the most.")
    return now + (ttl_ms if ttl_ms > 0 else default_ttl_ms)


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

    def release(self, tx: Transaction, owner: str, where: str = "TRUE", *parameters: Any) -> int:
        """Free the rows that match and that this owner has leased; returns their number."""
        return self.grant(tx, Lease(), f"({where}) AND {self.owner} = ?", *parameters, owner)
