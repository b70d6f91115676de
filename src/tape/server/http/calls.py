"""`GET /v1/calls` with `Upgrade: tape/1`: the connection becomes one of the call protocol."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tape.base.telemetry.metrics import Metrics
from tape.journal.journal import Journal
from tape.proto.call_frames import JOURNAL_HEADER, PROTOCOL
from tape.server.grpc.methods import UnaryMethod
from tape.server.http.access import HttpAccess
from tape.server.http.calls_connection import CallLimits, CallsConnection
from tape.server.http.problems import envelope
from tape.server.http.protocol import KEY, HttpConnection

SWITCHING = f"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: {PROTOCOL}\r\n\r\n".encode()


class CallRoutes:
    """The route of the call protocol. Tokens are in the calls; the upgrade itself needs none."""

    def __init__(
        self, journal: Journal, methods: Mapping[str, UnaryMethod], access: HttpAccess, metrics: Metrics, max_bytes: int
    ) -> None:
        self._journal = journal
        self._methods = methods
        self._access = access
        self._connected = metrics.call_connections
        self._max_bytes = max_bytes

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Upgrade the connection of a request, or say why not."""
        request = Request(scope)
        if (refusal := await self._refuse(request)) is not None:
            await refusal(scope, receive, send)
            return
        connection: HttpConnection = scope[KEY]
        limits = CallLimits(self._max_bytes, connection.limits.header_timeout_s, connection.limits.body_timeout_s)
        if connection.upgrade(SWITCHING, CallsConnection(self._methods, limits, connection, self._connected)):
            # Only the metrics of routes see this: the head was sent by `upgrade`.
            await send({"type": "http.response.start", "status": 101, "headers": []})

    async def _refuse(self, request: Request) -> Response | None:
        if not _asks_for_upgrade(request):
            refusal = envelope(426, "upgrade_required", f"this route needs an upgrade to {PROTOCOL} (docs/calls.md).")
            refusal.headers.update({"upgrade": PROTOCOL, "connection": "Upgrade"})
            return refusal
        self._access.check_host(request)
        journal_id = (await self._journal.head()).journal_id
        if request.headers.get(JOURNAL_HEADER, journal_id) != journal_id:
            return envelope(421, "other_journal", f"this server has another journal than {JOURNAL_HEADER} says.")
        return None


def _asks_for_upgrade(request: Request) -> bool:
    tokens = {
        name: [each.strip().lower() for each in request.headers.get(name, "").split(",")]
        for name in ("connection", "upgrade")
    }
    return "upgrade" in tokens["connection"] and PROTOCOL in tokens["upgrade"]
