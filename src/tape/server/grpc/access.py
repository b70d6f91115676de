"""Authentication and authorization of gRPC calls."""

from __future__ import annotations

import asyncio
import time
from abc import ABC
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeVar

import msgspec

from tape.engine.ledgers.run_record import PLAYBOOKS
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
from tape.server.admission import Admission
from tape.server.client_certificates import to_der

Reply = TypeVar("Reply")

# The certificate in DER among the properties of a connection that is not gRPC's, which has it in PEM.
CERTIFICATE_KEY = "x509_der_cert"


class AdmittedContext(ABC):
    """The context of a call whose caller another endpoint has found already; its permissions are checked as ever."""

    __slots__ = ()
    principal: Principal


class RpcAccess:
    """Admits or rejects calls. An open server without an internal token admits every call without a service key."""

    def __init__(self, access: Access, admission: Admission) -> None:
        self._access = access
        self.admission = admission
        self._is_restricted = not access.is_open or access.has_internal_token
        self._owner = access.open_principal()

    async def admit(self, method: str, context: Any) -> Principal:
        """The principal of the token in the `authorization` metadata, else of the certificate of the connection.

        Raises unless it may call this method.
        """
        if isinstance(context, AdmittedContext):
            principal = context.principal
            if self._is_restricted or not principal.is_open:
                self._access.authorize(method, principal)
            set_principal(principal)
            return principal
        metadata = context.invocation_metadata()
        header = _value(metadata, "authorization")
        token = bearer_of(header)
        if self._access.is_anonymous(token):
            principal = self._owner
        elif token:
            principal = await self._access.verify(token, _value(metadata, "x-harbor-session"))
        elif not header and self._access.has_certificates and (certificate := _certificate_of(context)) is not None:
            principal = self._access.verify_certificate(certificate, _value(metadata, "x-harbor-session"))
        else:
            raise IdentityRequired("authorization metadata missing or malformed: send 'authorization: Bearer <token>'.")
        if self._is_restricted or not principal.is_open:
            self._access.authorize(method, principal)
        set_principal(principal)
        return principal

    async def guard(self, principal: Principal, replies: AsyncIterator[Reply]) -> AsyncIterator[Reply]:
        """The replies of a stream, until the token of its caller is no longer valid."""
        guard = _StreamGuard(principal)
        stop = self._access.watch(principal, guard.end)
        try:
            while (reply := await guard.next(replies)) is not None:
                yield reply
        finally:
            stop()


class _StreamGuard:
    """Ends a stream with UNAUTHENTICATED.

    It cancels the stream's task only while the task waits for the next reply, so that the status reaches the client.
    """

    def __init__(self, principal: Principal) -> None:
        self._expires_at = principal.expires_at
        self._task = asyncio.current_task()
        self._is_waiting = False
        self._is_over = False

    def end(self) -> None:
        """End the stream."""
        self._is_over = True
        if self._is_waiting and self._task is not None:
            self._task.cancel()

    async def next(self, replies: AsyncIterator[Reply]) -> Reply | None:
        """The next reply, None after the last. Raises TokenRejected once the stream has to end."""
        self._check()
        self._is_waiting = True
        try:
            reply = await anext(replies, None)
        except asyncio.CancelledError:
            if not self._is_over or self._task is None:
                raise
            self._task.uncancel()
            reply = None
        finally:
            self._is_waiting = False
        self._check()
        return reply

    def _check(self) -> None:
        if self._expires_at is not None and time.time() >= self._expires_at:
            raise TokenRejected("token_expired")
        if self._is_over:
            raise TokenRejected("unknown_key")


def own(drafts: Sequence[Draft]) -> list[Draft]:
    """Drafts with the identity of the current principal; naming another identity needs a scope."""
    if is_open_caller():
        return list(drafts)
    principal = current_principal()
    return [_owned(draft, principal) for draft in drafts]


def is_open_caller() -> bool:
    """Whether the caller needs no token: an open server that guards nothing does not look for its principal."""
    principal = current_principal()
    return principal is SYSTEM or principal.is_open


def _owned(draft: Draft, principal: Principal) -> Draft:
    # Workers name the app of playbooks as the tenant of what a step publishes; of a bound worker that is its own.
    is_of_playbook = draft.tenant == PLAYBOOKS and not principal.sees_all_tenants
    tenant = principal.tenant_for("" if is_of_playbook else draft.tenant)
    if principal.has(AGENT, WORKER, OPERATOR, ADMIN, SYSTEM_SCOPE):
        # These act for the users and sessions of their tenant, and may name the reaction they work for.
        return draft if tenant == draft.tenant else msgspec.structs.replace(draft, tenant=tenant)
    for name in ("user", "session"):
        if getattr(draft, name) not in ("", getattr(principal, name)):
            raise ScopeRequired(f"{name} {getattr(draft, name)!r} is not the caller's; that needs the scope `agent`.")
    # Naming a reaction as the cause would hide the entry from that reaction.
    return msgspec.structs.replace(draft, tenant=tenant, user=principal.user, session=principal.session, cause="")


def _certificate_of(context: Any) -> bytes | None:
    """The verified client certificate of the connection, in DER."""
    found = context.auth_context()
    if CERTIFICATE_KEY in found:
        return bytes(found[CERTIFICATE_KEY][0])
    pem = found.get("x509_pem_cert")
    return to_der(bytes(pem[0])) if pem else None


def _value(metadata: Any, name: str) -> str:
    return next((str(value).strip() for key, value in metadata or () if key == name), "")
