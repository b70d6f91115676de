"""The tenant that values and sessions of a caller belong to."""

from __future__ import annotations

from tape.model.principal import current_principal


def own_tenant() -> str:
    """The tenant whose values and sessions the caller reads and writes: its own; empty on an open server."""
    principal = current_principal()
    return "" if principal.is_open else principal.tenant
