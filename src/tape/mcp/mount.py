"""`/mcp` of a server: the journal as an MCP server over streamable HTTP, for each caller what its token permits."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any

import anyio
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from tape.base.telemetry.metrics import Metrics
from tape.client.aio import AsyncTapeClient
from tape.errors import IdentityRequired, ServerStopping
from tape.mcp.caller_channel import CallerChannel
from tape.mcp.server import journal_server
from tape.mcp.session_manager import LOOPBACK
from tape.model.principal import Principal
from tape.server.admission import TICKET
from tape.server.grpc.methods import Methods
from tape.server.http.access import HttpAccess
from tape.server.http.router import App

PATH = "/mcp"
METHODS = ("POST", "GET", "DELETE")
PRINCIPAL = "tape.principal"
# Bytes of a request: the largest payload, and what a call has beside it.
SLACK_BYTES = 256 << 10
MAX_SESSIONS = 1_000
IDLE_S = 600.0


class McpMount:
    """The routes of `/mcp`. The sessions of one caller are not those of another; nothing is replayed."""

    def __init__(self, methods: Methods, access: HttpAccess, metrics: Metrics, max_payload_bytes: int) -> None:
        self._methods = methods
        self._access = access
        self._metrics = metrics
        self._max_bytes = max_payload_bytes + SLACK_BYTES
        self._server = journal_server(self._connect, middleware=[self._count])
        self._manager: StreamableHTTPSessionManager | None = None

    def add_to(self, app: App) -> None:
        """Add the routes to the application."""
        for method in METHODS:
            app.add_raw(method, PATH, self.serve)

    async def run(self) -> None:
        """Keep sessions until cancelled."""
        manager = StreamableHTTPSessionManager(
            self._server._lowlevel_server,
            # A server with tokens is reached by names that only its operator knows; the token proves the caller.
            security_settings=LOOPBACK if self._access.is_local else None,
            session_idle_timeout=IDLE_S,
            max_request_body_size=self._max_bytes,
            max_sessions=MAX_SESSIONS,
        )
        async with manager.run():
            self._manager = manager
            try:
                await asyncio.Event().wait()
            finally:
                self._manager = None

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request as its caller."""
        request = Request(scope, receive)
        self._access.check_host(request)
        caller = await self._access.caller_of(request)
        if self._manager is None:
            raise ServerStopping("MCP is not being served now. Try again.")
        scope[PRINCIPAL] = caller
        scope["user"] = _user_of(caller)
        scope[TICKET].leave()  # the calls that a tool makes are admitted on their own; the connection is a stream
        with contextlib.closing(self._access.admission.open_stream(caller)), self._until_withdrawn(caller):
            await self._manager.handle_request(scope, receive, send)

    @contextlib.contextmanager
    def _until_withdrawn(self, caller: Principal) -> Iterator[None]:
        """Cut the request off when its token expires or is withdrawn."""
        with anyio.CancelScope() as cancelling:
            expiry = None
            if caller.expires_at is not None:
                left = max(caller.expires_at - time.time(), 0.0)
                expiry = asyncio.get_running_loop().call_later(min(left, 86_400.0), cancelling.cancel)
            stop = self._access.watch(caller, cancelling.cancel)
            try:
                yield
            finally:
                stop()
                if expiry is not None:
                    expiry.cancel()

    def _connect(self, context: ServerRequestContext[Any, Any]) -> AsyncTapeClient:
        """A client that acts as the caller of a request."""
        principal = context.request.scope.get(PRINCIPAL) if context.request is not None else None
        if principal is None:
            raise IdentityRequired("the request has no caller.")
        return AsyncTapeClient.over(CallerChannel(self._methods, principal))

    async def _count(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        """Count tool calls by tool and outcome; unknown names are counted together."""
        if ctx.method != "tools/call":
            return await call_next(ctx)
        name = str((ctx.params or {}).get("name", ""))
        tool = name if name in ("append", "tail", "search", "runs", "explain") else "other"
        outcome = "failed"
        try:
            result = await call_next(ctx)
            is_error = result.get("isError") if isinstance(result, dict) else getattr(result, "is_error", False)
            outcome = "refused" if is_error else "ok"
            return result
        finally:
            self._metrics.mcp_calls.labels(tool, outcome).inc()


def _user_of(caller: Principal) -> AuthenticatedUser:
    """The caller as the SDK compares it: a session belongs to the principal that opened it."""
    scopes = sorted(caller.scopes)
    subject = "\0".join((*caller.triple, *scopes, *(caller.read or ()), "|", *(caller.write or ())))
    token = AccessToken(token="", client_id=caller.key_id or "anonymous", scopes=scopes, subject=subject)
    return AuthenticatedUser(token)
