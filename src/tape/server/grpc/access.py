"""Authentication and authorization of gRPC calls."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from tape.errors import IdentityRequired, ScopeRequired, TokenRejected
from tape.model.entry import Draft
from tape.model.principal import (
    ADMIN,
    AGENT,
    OPERATOR,
    SYSTEM,
    SYSTEM_SCOPE,
    WORKER,
    Principal,
    current_principal,
    set_principal,
)
from tape.server.access import Access, bearer_of
from tape.server.permissions import authorize


class RpcAccess:
    """Admits or rejects calls. An open server without an internal token admits every call."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self.is_restricted = not access.is_open or access.has_internal_token

    async def admit(self, method: str, metadata: Any) -> Principal:
        """The principal of the token in the `authorization` metadata. Raises unless it may call this method."""
        token = bearer_of(_value(metadata, "authorization"))
        if self._access.is_open and not self._access.is_internal(token):
            principal = self._access.open_principal()
        elif token:
            principal = await self._access.verify(token, _value(metadata, "x-harbor-session"))
        else:
            raise IdentityRequired("authorization metadata missing or malformed: send 'authorization: Bearer <token>'.")
        authorize(method, principal)
        set_principal(principal)
        return principal


def check_expiry(principal: Principal | None) -> None:
    """Raise once the principal's token has expired: a stream must not outlive it."""
    if principal is not None and principal.expires_at is not None and time.time() >= principal.expires_at:
        raise TokenRejected("token_expired")


def visible_tenant() -> str | None:
    """The only tenant whose entries the caller sees; None if it sees all."""
    principal = current_principal()
    return None if principal.sees_all_tenants else principal.tenant


def own(drafts: Sequence[Draft]) -> list[Draft]:
    """Drafts with the identity of the current principal; naming another identity needs a scope."""
    principal = current_principal()
    if principal is SYSTEM or principal.is_open:
        return list(drafts)
    return [_owned(draft, principal) for draft in drafts]


def _owned(draft: Draft, principal: Principal) -> Draft:
    tenant = principal.tenant_for(draft.tenant)
    if principal.has(AGENT, WORKER, OPERATOR, ADMIN, SYSTEM_SCOPE):
        # These act for the users and sessions of their tenant, and may name the reaction they work for.
        return draft if tenant == draft.tenant else msgspec.structs.replace(draft, tenant=tenant)
    for name in ("user", "session"):
        if getattr(draft, name) not in ("", getattr(principal, name)):
            raise ScopeRequired(f"{name} {getattr(draft, name)!r} is not the caller's; that needs the scope `agent`.")
    # Naming a reaction as the cause would hide the entry from that reaction.
    return msgspec.structs.replace(draft, tenant=tenant, user=principal.user, session=principal.session, cause="")


def _value(metadata: Any, name: str) -> str:
    return next((str(value).strip() for key, value in metadata or () if key == name), "")
