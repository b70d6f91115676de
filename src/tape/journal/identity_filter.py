"""Identity filter: a condition on tenant, user and session for the journal and the counts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, product
from typing import Any

import msgspec

from tape.store import Reader

# Identities that are looked up in the index, each by itself.
MAX_KEYS = 64


class IdentityFilter(msgspec.Struct, frozen=True):
    """Values that tenant, user and session may have; None is any."""

    tenants: Sequence[str] | None = None
    users: Sequence[str] | None = None
    sessions: Sequence[str] | None = None

    @property
    def is_one_session(self) -> bool:
        """Whether the index by identity leads straight to it."""
        axes = (self.tenants, self.users, self.sessions)
        return all(values is not None and len(values) == 1 for values in axes) and self.sessions != [""]

    @property
    def keys(self) -> list[tuple[str, str, str]] | None:
        """Tenant, user and session of every identity, if they are few and the index by identity has them."""
        if self.tenants is None or self.users is None or not self.sessions or not all(self.sessions):
            return None
        keys = list(islice(product(self.tenants, self.users, self.sessions), MAX_KEYS + 1))
        return keys if len(keys) <= MAX_KEYS else None

    @property
    def is_tenant_only(self) -> bool:
        """Whether users and sessions do not matter."""
        return self.users is None and self.sessions is None

    def condition(self, reader: Reader, *, by_index: bool = True) -> tuple[str, list[Any]]:
        """SQL and its parameters; not `by_index` where a range of the journal is short already."""
        conditions, params = ["1 = 1"], []
        for column, values in (("tenant", self.tenants), ('"user"', self.users), ("session", self.sessions)):
            if values is None:
                continue
            if not by_index:
                column = f"({column} || '')"
            if len(values) == 1:
                conditions.append(f"{column} = ?")
                params.append(values[0])
            else:
                condition, param = reader.is_any(column, values)
                conditions.append(condition)
                params.append(param)
        if by_index and self.sessions and all(self.sessions):
            conditions.append("session <> ''")  # lets planners use the index, which has no others
        return " AND ".join(conditions), params
