"""The caller of an HTTP request: a verified token or, on a server without keys, a local client."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from tape.base.config import is_loopback
from tape.engine.security.audit import Audit
from tape.engine.security.identity import SCOPES, Authenticator, Principal
from tape.errors import IdentityRequired, InvalidRequest, ScopeRequired, TokenRejected
from tape.model.entry import check_id

SESSION = "x-harbor-session"


class HttpAccess:
    """Finds the caller of a request. Without an authenticator, callers name their own identity."""

    def __init__(self, authenticator: Authenticator | None, audit: Audit, *, anonymous_network: bool = False) -> None:
        self._authenticator = authenticator
        self._audit = audit
        self._is_local = not anonymous_network

    @property
    def knows_tokens(self) -> bool:
        """Whether this server verifies tokens; otherwise callers name their own identity."""
        return self._authenticator is not None

    async def caller_of(self, request: Request, *, query_too: bool = False) -> Principal:
        """The caller; with `query_too` a token may be in the query, for browsers that cannot send headers."""
        if self._authenticator is None:
            return self._anonymous(request)
        header, session = request.headers.get("authorization"), request.headers.get(SESSION, "").strip()
        token = bearer_of(header)
        if header is None and query_too:
            token = request.query_params.get("access_token", "")
            session = session or request.query_params.get("session", "").strip()
        if not token:
            raise IdentityRequired("authorization header missing or malformed: send 'Authorization: Bearer <token>'.")
        check_id(SESSION, session)
        try:
            return await self._authenticator.verify(token, session)
        except TokenRejected as error:
            self._audit.auth_rejected(error.reason)
            raise

    def _anonymous(self, request: Request) -> Principal:
        if self._is_local and not _is_for_this_machine(request):
            # DNS rebinding: a remote web page whose name resolves to this machine is rejected.
            raise ScopeRequired(
                f"the host {request.headers.get('host', '')!r} is not this machine; a server without auth_jwks answers"
                " to localhost and 127.0.0.1 only."
            )
        names: dict[str, Any] = {}
        for name in ("tenant", "user", "session"):
            value = request.headers.get(f"x-harbor-{name}", "").strip() or request.query_params.get(name, "").strip()
            check_id(name, value)
            names[name] = value
        return Principal(**names, scopes=SCOPES)


def require_widening(caller: Principal, message: str) -> None:
    """Raise unless the caller may look beyond its own session."""
    if not caller.can_widen:
        raise ScopeRequired(message)


def bearer_of(header: str | None) -> str:
    """The token of an Authorization header; empty if there is none."""
    scheme, _, token = (header or "").strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _is_for_this_machine(request: Request) -> bool:
    try:
        return is_loopback(request.url.hostname or "")
    except ValueError as error:
        raise InvalidRequest(f"the Host header {request.headers.get('host')!r} is invalid.") from error
