"""Authentication and authorization of gRPC calls, on a server that requires tokens."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import msgspec

from tape.engine.security.audit import Audit
from tape.engine.security.identity import ADMIN, SERVICE, Authenticator, Principal
from tape.errors import IdentityRequired, ScopeRequired, TokenRejected
from tape.model.entry import Draft

# Most RPCs serve whole tenants: runs, leases, values. They need one of these scopes.
SCOPES = frozenset({ADMIN, SERVICE})
# What every caller may do: append to its own session, and read the head of the journal.
OPEN_TO_ALL = frozenset({"Append", "AppendStream", "GetHead"})

_caller: ContextVar[Principal | None] = ContextVar("caller", default=None)


class RpcAccess:
    """Admits or rejects calls. Without an authenticator every call is admitted."""

    def __init__(self, authenticator: Authenticator | None, audit: Audit) -> None:
        self._authenticator = authenticator
        self._audit = audit
        self.is_restricted = authenticator is not None

    async def admit(self, method: str, metadata: Any) -> Principal:
        """The caller of the token in the `authorization` metadata. Raises unless it may call this method."""
        assert self._authenticator is not None
        header = next((value for key, value in metadata or () if key == "authorization"), "")
        scheme, _, token = str(header).strip().partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise IdentityRequired("authorization metadata missing or malformed: send 'authorization: Bearer <token>'.")
        try:
            caller = await self._authenticator.verify(token.strip(), session=_session(metadata))
        except TokenRejected as error:
            self._audit.auth_rejected(error.reason)
            raise
        if method not in OPEN_TO_ALL and SCOPES.isdisjoint(caller.scopes):
            raise ScopeRequired(f"{method} serves whole tenants; it needs a token with the scope `service` or `admin`.")
        _caller.set(caller)
        return caller


def check_expiry(caller: Principal | None) -> None:
    """Raise once the caller's token has expired: a stream must not outlive it."""
    if caller is not None and caller.expires_at is not None and time.time() >= caller.expires_at:
        raise TokenRejected("token_expired")


def own(drafts: Sequence[Draft]) -> list[Draft]:
    """Drafts with the identity of the current caller; naming another identity needs a scope."""
    caller = _caller.get()
    if caller is None or not SCOPES.isdisjoint(caller.scopes):
        return list(drafts)
    return [_owned(draft, caller) for draft in drafts]


def _owned(draft: Draft, caller: Principal) -> Draft:
    for name in ("tenant", "user", "session"):
        if getattr(draft, name) not in ("", getattr(caller, name)):
            raise ScopeRequired(
                f"{name} {getattr(draft, name)!r} is not the caller's; that needs the scope `service` or `admin`."
            )
    # The caller may not name a reaction as the cause either: that would hide the entry from the reaction.
    return msgspec.structs.replace(draft, tenant=caller.tenant, user=caller.user, session=caller.session, cause="")


def _session(metadata: Any) -> str:
    return next((str(value).strip() for key, value in metadata or () if key == "x-harbor-session"), "")
