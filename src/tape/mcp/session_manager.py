"""Streamable HTTP of an MCP server with resumable sessions, each with an event store of its own."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from mcp.server.lowlevel.server import Server
from mcp.server.mcpserver import MCPServer
from mcp.server.streamable_http import EventStore, StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.routing import Route

from tape.mcp.event_store import JournalEventStore, SessionEventStore

# Milliseconds after which a client comes back to a stream that the server ended.
RETRY_INTERVAL_MS = 1_000
LOOPBACK = TransportSecuritySettings(
    enable_dns_rebinding_protection=True,
    allowed_hosts=["127.0.0.1:*", "localhost:*", "[::1]:*", "127.0.0.1", "localhost", "[::1]"],
    allowed_origins=["http://127.0.0.1:*", "http://localhost:*", "http://[::1]:*"],
)


class SessionManager(StreamableHTTPSessionManager):
    """The SDK's session manager, with a `JournalEventStore`: each session resumes its own messages only.

    The arguments are those of `StreamableHTTPSessionManager`.
    """

    def __init__(self, app: Server[Any], event_store: JournalEventStore, **options: Any) -> None:
        self._journal = event_store
        self._stores: dict[str, SessionEventStore] = {}
        self._latest: SessionEventStore | None = None
        options.setdefault("retry_interval", RETRY_INTERVAL_MS)
        super().__init__(app, **options)

    # The manager reads this attribute once for each session that it opens.
    @property
    def event_store(self) -> EventStore | None:
        """An event store for the session that is being opened."""
        self._latest = self._journal.for_session()
        return self._latest

    @event_store.setter
    def event_store(self, _: EventStore | None) -> None:
        """The manager of the SDK sets what it was given, which is none."""

    def _admit_session(self, requestor: Any) -> StreamableHTTPServerTransport | None:
        transport = super()._admit_session(requestor)
        store, self._latest = self._latest, None
        if transport is not None and store is not None and transport.mcp_session_id is not None:
            self._stores[transport.mcp_session_id] = store
            store.is_connected = transport._request_streams.__contains__
        return transport

    async def _discard_session(self, session_id: str, transport: StreamableHTTPServerTransport) -> None:
        store = self._stores.pop(session_id, None)
        await super()._discard_session(session_id, transport)
        if store is not None:
            await store.end()


def streamable_http_app(
    server: MCPServer[Any] | Server[Any],
    event_store: JournalEventStore,
    *,
    path: str = "/mcp",
    transport_security: TransportSecuritySettings | None = LOOPBACK,
    **options: Any,
) -> Starlette:
    """An ASGI application that serves an MCP server at a path, with sessions that can be resumed.

    It answers to the names of this host only, unless `transport_security` says otherwise. `options` are those of
    `SessionManager`. Wrap it in your authentication as you would wrap the SDK's own application.
    """
    lowlevel: Server[Any] = server._lowlevel_server if isinstance(server, MCPServer) else server
    manager = SessionManager(lowlevel, event_store, security_settings=transport_security, **options)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        try:
            async with manager.run():
                yield
        finally:
            await event_store.close()

    return Starlette(routes=[Route(path, endpoint=StreamableHTTPASGIApp(manager))], lifespan=lifespan)
