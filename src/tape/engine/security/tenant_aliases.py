"""Former names of tenants: entries keep their tenant, which the hash chain covers, and its owner sees them.

Every server that shares the database reads the aliases once a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import msgspec

from tape.errors import TapeError, TokenRejected
from tape.model.entry import SYSTEM_TENANT
from tape.model.principal import Principal
from tape.store import Database, Reader, Transaction

log = logging.getLogger(__name__)

POLL_S = 1.0


def read_owners(reader: Reader | Transaction) -> dict[str, str]:
    """The owner of each former name."""
    return dict(reader.query("SELECT tenant, owner FROM tape_tenant_aliases"))


def names_by_owner(owners: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The former names of each owner, in order."""
    names: dict[str, tuple[str, ...]] = {}
    for tenant, owner in sorted(owners.items()):
        names[owner] = (*names.get(owner, ()), tenant)
    return names


class TenantAliases:
    """The aliases of a database, in memory. `start()` it before the first call."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._owners: dict[str, str] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the aliases, then keep them current."""
        await self.refresh()
        self._task = asyncio.create_task(self._keep_current())

    async def close(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def refresh(self) -> None:
        """Read the aliases."""
        self._owners = await self._database.read(read_owners)
        self._names = names_by_owner(self._owners)

    def apply(self, principal: Principal) -> Principal:
        """The principal with the former names of its tenant. TokenRejected if its tenant is itself a former name.

        Entries under a former name belong to the owner: another tenant of that name would read them. Callers of an open
        server choose their tenant, so nothing is kept from them.
        """
        tenant = principal.tenant
        if not principal.is_open and not principal.sees_all_tenants:
            if tenant == SYSTEM_TENANT:
                raise TokenRejected("tenant_reserved")
            if tenant in self._owners:
                raise TokenRejected("tenant_moved")
        names = self._names.get(tenant)
        return msgspec.structs.replace(principal, former_tenants=names) if names else principal

    async def _keep_current(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            try:
                await self.refresh()
            except TapeError as error:
                log.warning("reading tenant aliases failed, retrying in %.0f s: %s", POLL_S, error)
