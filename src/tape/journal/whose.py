"""Whose entries a question is about, as a condition on the journal and on what is counted from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tape.store import Reader


class Whose(msgspec.Struct, frozen=True):
    """Values that tenant, user and session may have; None is any."""

    tenants: Sequence[str] | None = None
    users: Sequence[str] | None = None
    sessions: Sequence[str] | None = None

    def condition(self, reader: Reader) -> tuple[str, list[Any]]:
        """SQL and its parameters."""
        conditions, params = ["1 = 1"], []
        for column, values in (("tenant", self.tenants), ('"user"', self.users), ("session", self.sessions)):
            if values is None:
                continue
            if len(values) == 1:
                conditions.append(f"{column} = ?")
                params.append(values[0])
            else:
                condition, param = reader.is_any(column, values)
                conditions.append(condition)
                params.append(param)
        if self.sessions and all(self.sessions):
            conditions.append("session <> ''")  # lets planners use the index, which has no others
        return " AND ".join(conditions), params
