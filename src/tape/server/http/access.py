"""The principal of an HTTP request: a verified token or, on an open server, a local client."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request

from tape.base.config import is_loopback
from tape.errors import IdentityRequired, InvalidRequest, ScopeRequired, SubjectNotGranted
from tape.model.entry import check_id
from tape.model.grants import Grants
from tape.model.pattern import EVERY_SUBJECT
from tape.model.principal import Principal, set_principal
from tape.server.access import Access, bearer_of
from tape.server.admission import TICKET, Admission
from tape.server.http.protocol import KEY

SESSION = "x-harbor-session"
# The route whose requests count as appends.
APPENDING = "/v1/events"
# Routes with a body that only read.
READING = ("/v1/events/list", "/v1/events/aggregate")
# Bytes of a body that are counted before they arrive. What a request has beyond them is counted as it arrives.
MAX_ANNOUNCED_BYTES = 16 << 20


def _announced_bytes(request: Request) -> int:
    """The length of a request's body as its headers say; 0 if they do not."""
    length = request.headers.get("content-length", "")
    return min(int(length), MAX_ANNOUNCED_BYTES) if length.isascii() and length.isdecimal() else 0


class HttpAccess:
    """Finds the principal of a request. On an open server, callers name their own identity."""

    def __init__(self, access: Access, admission: Admission, *, anonymous_network: bool = False) -> None:
        self._access = access
        self.admission = admission
        self._is_local = not anonymous_network

    async def caller_of(self, request: Request, *, query_too: bool = False) -> Principal:
        """The principal, which the request acts as from now on.

        With `query_too` a token may be in the query, for browsers that cannot send headers.
        """
        principal = await self._principal_of(request, query_too)
        set_principal(principal)
        if TICKET not in request.scope:
            path = request.scope["path"]
            request.scope[TICKET] = self.admission.enter(
                principal,
                _announced_bytes(request),
                appends=path == APPENDING and request.method == "POST",
                reads=path in READING,
            )
        return principal

    async def _principal_of(self, request: Request, query_too: bool) -> Principal:
        header, session = request.headers.get("authorization"), request.headers.get(SESSION, "").strip()
        token = bearer_of(header)
        if header is None and query_too:
            token = request.query_params.get("access_token", "")
            session = session or request.query_params.get("session", "").strip()
        if self._access.is_anonymous(token):
            return self._anonymous(request)
        if token:
            check_id(SESSION, session)
            return await self._access.verify(token, session)
        if header is None and self._access.has_certificates and (certificate := _certificate_of(request)) is not None:
            return self._access.verify_certificate(certificate, session)
        raise IdentityRequired("authorization header missing or malformed: send 'Authorization: Bearer <token>'.")

    def authorize(self, call: str, principal: Principal) -> None:
        """Raise ScopeRequired unless the principal may make the call. A scope that reaches all tenants is audited."""
        self._access.authorize(call, principal)

    def watch(self, principal: Principal, end: Callable[[], None]) -> Callable[[], None]:
        """Call `end` once the principal's token is no longer valid. Returns the function that stops this."""
        return self._access.watch(principal, end)

    @property
    def is_local(self) -> bool:
        """Whether this is an open server for clients of its own host."""
        return self._access.is_open and self._is_local

    @property
    def is_unguarded(self) -> bool:
        """Whether the server has neither keys nor an internal token."""
        return self._access.is_open and not self._access.has_internal_token

    def check_host(self, request: Request) -> None:
        """Raise ScopeRequired if this is an open server and the request names another machine."""
        if self._access.is_open:
            self._check_host(request)

    def _check_host(self, request: Request) -> None:
        if self._is_local and not _is_for_this_machine(request):
            # DNS rebinding: a remote web page whose name resolves to this machine is rejected.
            raise ScopeRequired(
                f"the host {request.headers.get('host', '')!r} is not this machine; a server without auth_jwks answers"
                " to localhost and 127.0.0.1 only."
            )

    def _anonymous(self, request: Request) -> Principal:
        self._check_host(request)
        names: dict[str, str] = {}
        for name in ("tenant", "user", "session"):
            value = request.headers.get(f"x-harbor-{name}", "").strip() or request.query_params.get(name, "").strip()
            check_id(name, value)
            names[name] = value
        return self._access.open_principal(**names)


def require_widening(caller: Principal, message: str) -> None:
    """Raise unless the caller may look beyond its own session."""
    if not caller.can_widen:
        raise ScopeRequired(message)


def granted_to(caller: Principal) -> Grants | None:
    """The subjects whose entries the caller may read; None is all. Raises SubjectNotGranted if there is none."""
    grants = caller.read_grants
    if grants is None or grants.covers(EVERY_SUBJECT):
        return None
    if not grants.patterns:
        raise SubjectNotGranted("the read grants of this token are empty: it may read no subject.")
    return grants


def _certificate_of(request: Request) -> bytes | None:
    """The verified client certificate of the connection, in DER."""
    connection = request.scope.get(KEY)
    return None if connection is None else connection.certificate


def _is_for_this_machine(request: Request) -> bool:
    try:
        return is_loopback(request.url.hostname or "")
    except ValueError as error:
        raise InvalidRequest(f"the Host header {request.headers.get('host')!r} is invalid.") from error
