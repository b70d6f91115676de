"""The principal of a call, made the same way for gRPC and HTTP."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from tape.engine.security.audit import Audit
from tape.engine.security.key_ring import KeyRing
from tape.engine.security.tenant_aliases import TenantAliases
from tape.errors import CertificateRejected, TokenRejected
from tape.model.principal import (
    ADMIN,
    AGENT,
    ALL_TENANTS,
    APPROVER,
    FLEET,
    OPERATOR,
    RUNTIME,
    SYSTEM_SCOPE,
    WORKER,
    Principal,
)
from tape.model.service_key import has_key_prefix
from tape.server.client_certificates import ClientCertificates
from tape.server.open_streams import OpenStreams
from tape.server.permissions import authorize

if TYPE_CHECKING:
    from tape.engine.security.identity import Authenticator

# What a caller of an open server may do: everything but what is for gateways and the system itself.
OPEN_SCOPES = frozenset({AGENT, WORKER, APPROVER, OPERATOR, ADMIN, RUNTIME, FLEET})
# Where an internal token is set, it guards these on an open server too.
GUARDED_SCOPES = frozenset({OPERATOR, ADMIN, RUNTIME})
# Calls that reach no tenant: the head of the journal and the ports of the server are public.
UNRECORDED = frozenset({"GetHead", "GetServerInfo"})
# The internal token is one key of the system itself.
INTERNAL = Principal(scopes=frozenset({SYSTEM_SCOPE}), key_id="internal")


class Access:
    """Finds the principal of a token, a service key or a client certificate.

    Without JWKS and `tls_clients` the server is open, unless it requires keys. Every server checks service keys.
    """

    def __init__(
        self,
        authenticator: Authenticator | None,
        audit: Audit,
        keys: KeyRing,
        aliases: TenantAliases,
        internal_token: str = "",
        certificates: ClientCertificates | None = None,
        *,
        requires_keys: bool = False,
    ) -> None:
        self._authenticator = authenticator
        self._certificates = certificates or ClientCertificates()
        self._audit = audit
        self._keys = keys
        self._aliases = aliases
        self._requires_keys = requires_keys
        self._internal_token = internal_token.encode()
        self._streams = OpenStreams()
        keys.on_ended = self._streams.end_keys
        if authenticator is not None:
            authenticator.on_withdrawn(self._streams.end_keys)
        self._open_scopes = OPEN_SCOPES - GUARDED_SCOPES if internal_token else OPEN_SCOPES

    @property
    def is_open(self) -> bool:
        """Whether callers need no token, and name their own identity."""
        return self._authenticator is None and not self._certificates and not self._requires_keys

    def is_anonymous(self, token: str) -> bool:
        """Whether the server is open and the token is none that it knows. A wrong service key is never anonymous."""
        return self.is_open and not self.is_internal(token) and not has_key_prefix(token)

    @property
    def has_internal_token(self) -> bool:
        """Whether an internal token is configured."""
        return bool(self._internal_token)

    def is_internal(self, token: str) -> bool:
        """Whether this is the internal token."""
        return bool(self._internal_token) and hmac.compare_digest(token.encode(), self._internal_token)

    async def verify(self, token: str, session: str = "") -> Principal:
        """The principal of a token or key. TokenRejected, and an audit entry, if it does not prove one."""
        if self.is_internal(token):
            return self._with_reach(INTERNAL)
        try:
            return self._with_reach(await self._verify(token, session))
        except TokenRejected as error:
            self._audit.auth_rejected(error.reason, error.key_id)
            raise

    def _with_reach(self, principal: Principal) -> Principal:
        """The principal with what its token does not say: former names of its tenant, and whether keys are set.

        TokenRejected if its tenant is no longer one.
        """
        if principal.sees_all_tenants and not self.is_open:
            return msgspec.structs.replace(principal, reads_several_tenants=True)
        return self._aliases.apply(principal)

    async def _verify(self, token: str, session: str) -> Principal:
        if has_key_prefix(token):
            return await self._keys.verify(token, session)
        if self._authenticator is None:
            raise TokenRejected("unknown_key")
        principal = await self._authenticator.verify(token, session)
        self._keys.check_token(principal)
        return principal

    @property
    def has_certificates(self) -> bool:
        """Whether client certificates can prove who a caller is."""
        return bool(self._certificates)

    def verify_certificate(self, der: bytes, session: str = "") -> Principal:
        """The principal of a certificate that TLS has verified. CertificateRejected, and an audit entry, if none."""
        try:
            return self._with_reach(self._certificates.principal_of(der, session))
        except (CertificateRejected, TokenRejected) as error:
            self._audit.auth_rejected(error.reason)
            raise

    def authorize(self, call: str, principal: Principal) -> None:
        """Raise ScopeRequired unless the principal may make the call. A scope that reaches all tenants is audited."""
        authorize(call, principal)
        if principal.has(ALL_TENANTS) and not principal.has(SYSTEM_SCOPE) and call not in UNRECORDED:
            self._audit.scope_used(principal, call, ALL_TENANTS)

    def watch(self, principal: Principal, end: Callable[[], None]) -> Callable[[], None]:
        """Call `end` once the principal's token is no longer valid. Returns the function that stops this."""
        is_withdrawn = self._authenticator is not None and self._authenticator.is_withdrawn(principal)
        if is_withdrawn or self._keys.is_ended(principal):
            end()
        return self._streams.watch(principal, end)

    def open_principal(self, tenant: str = "", user: str = "", session: str = "") -> Principal:
        """The principal of a caller of an open server, with the identity that it names."""
        caller = Principal(tenant=tenant, user=user, session=session, scopes=self._open_scopes, is_open=True)
        return self._aliases.apply(caller)


def bearer_of(header: str | None) -> str:
    """The token of an Authorization header; empty if there is none."""
    scheme, _, token = (header or "").strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
