"""`GET /v1/calls` with `Upgrade: tape/1`: the connection becomes one of the call protocol."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from tape.base.telemetry.metrics import Metrics
from tape.journal.journal import Journal
from tape.proto.call_frames import JOURNAL_HEADER, PROTOCOL
from tape.server.grpc.methods import UnaryMethod
from tape.server.http.access import HttpAccess
from tape.server.http.incoming_calls import CallLimits, IncomingCalls
from tape.server.http.problems import envelope
from tape.server.http.protocol import KEY, HttpConnection

SWITCHING = f"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: {PROTOCOL}\r\n\r\n".encode()


class CallRoutes:
    """The route of the call protocol. Tokens are in the messages that follow; the upgrade itself needs none.

    Half of the HTTP connections stay for other requests: clients that are refused call by gRPC.
    """

    def __init__(
        self,
        journal: Journal,
        methods: Mapping[str, UnaryMethod],
        access: HttpAccess,
        metrics: Metrics,
        max_message_bytes: int,
    ) -> None:
        self._journal = journal
        self._methods = methods
        self._access = access
        self._metric = metrics.call_connections
        self._max_message_bytes = max_message_bytes
        self._connections: set[IncomingCalls] = set()

    async def upgrade(self, request: Request) -> Response:
        """Upgrade the connection of a request, or say why not."""
        if not _asks_for_upgrade(request):
            refusal = envelope(426, "upgrade_required", f"this route needs an upgrade to {PROTOCOL} (docs/calls.md).")
            refusal.headers.update({"upgrade": PROTOCOL, "connection": "Upgrade"})
            return refusal
        self._access.check_host(request)
        journal_id = (await self._journal.head()).journal_id
        if request.headers.get(JOURNAL_HEADER, journal_id) != journal_id:
            return envelope(421, "other_journal", f"this server has another journal than {JOURNAL_HEADER} says.")
        connection: HttpConnection = request.scope[KEY]
        if len(self._connections) >= (most := connection.limits.max_connections // 2):
            return envelope(503, "runtime_error", f"{most} call connections are open, half of http_max_connections.")
        limits = CallLimits(
            self._max_message_bytes, connection.limits.header_timeout_s, connection.limits.body_timeout_s
        )
        connection.upgrade(SWITCHING, IncomingCalls(self._methods, limits, connection.certificate, self._count))
        return Response(status_code=101)  # only the metrics see it: `upgrade` has answered

    def _count(self, connection: IncomingCalls, is_open: bool) -> None:
        (self._connections.add if is_open else self._connections.discard)(connection)
        self._metric.set(len(self._connections))


def _asks_for_upgrade(request: Request) -> bool:
    tokens = {
        name: [each.strip().lower() for each in request.headers.get(name, "").split(",")]
        for name in ("connection", "upgrade")
    }
    return request.method == "GET" and "upgrade" in tokens["connection"] and PROTOCOL in tokens["upgrade"]
