"""The secrets that a subscription names: aliases of its own tenant."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tape.model.tenant_names import NO_TENANT, name_within, tenant_of

# Reads the secret of an alias for a connection to these hosts.
Reveal = Callable[[str, Sequence[str]], Awaitable[Any]]


def reveal_within(path: str, reveal: Reveal) -> Reveal:
    """Reads secrets for the subscription of a path: whatever alias its document names, it gets one of its tenant."""
    tenant = tenant_of(path)
    prefix = NO_TENANT if path.startswith(NO_TENANT) else ""

    async def reveal_own(alias: str, hosts: Sequence[str]) -> Any:
        return await reveal(prefix + name_within(tenant, alias), hosts)

    return reveal_own
