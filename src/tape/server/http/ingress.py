"""`POST /ingress/{listener}`: webhook deliveries, in a server and in a gateway; `GET` for handshakes of providers."""

from __future__ import annotations

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tape.errors import InvalidRequest
from tape.model.principal import SYSTEM_SCOPE, Principal, set_principal
from tape.server.http.problems import wrong_method
from tape.server.http.protocol import KEY
from tape.subscriptions.ingress.ingress import Ingress, IngressResponse
from tape.subscriptions.ingress.verification.delivery import RequestTarget

# An unread body larger than this is not drained: the connection is closed instead.
SMALL_BODY_BYTES = 64 << 10
# The principal of deliveries.
DELIVERY = Principal(scopes=frozenset({SYSTEM_SCOPE}), key_id="ingress")


class IngressRoutes:
    """The route of deliveries."""

    def __init__(self, ingress: Ingress) -> None:
        self._ingress = ingress

    async def deliver(self, request: Request) -> Response:
        """Accept a delivery; 202 when its message is durable."""
        # No token proves a delivery: it acts as the server, but takes no part of the server's own share of the writer.
        set_principal(DELIVERY)
        try:
            name = request.path_params["name"]
            answer = await self._ingress.receive(name, request.headers.raw, request.stream(), target_of(request))
        except ClientDisconnect as error:
            raise InvalidRequest("the sender disconnected before the end of the body.") from error
        return _response(answer, request)

    async def handshake(self, request: Request) -> Response:
        """Answer the handshake that a provider makes with a GET; 405 where there is none."""
        set_principal(DELIVERY)
        if request.method != "GET":
            return wrong_method("POST")
        query = request.scope["query_string"].decode("latin-1")
        answer = await self._ingress.receive_get(request.path_params["name"], query)
        return wrong_method("POST") if answer is None else _response(answer, request)


def target_of(request: Request) -> RequestTarget:
    """What a request was sent to, as signatures see it."""
    scope = request.scope
    path = scope.get("raw_path") or scope["path"].encode()
    connection = scope.get(KEY)
    return RequestTarget(
        request.method,
        path.decode("latin-1"),
        scope["query_string"].decode("latin-1"),
        connection.certificate if connection is not None else None,
    )


def _response(answer: IngressResponse, request: Request) -> Response:
    headers = {}
    if answer.retry_after_s:
        headers["retry-after"] = str(answer.retry_after_s)
    if answer.closes and not _is_small(request):
        headers["connection"] = "close"
    if isinstance(answer.body, str):  # chosen by the sender: never shown as a page
        headers["x-content-type-options"] = "nosniff"
        return Response(answer.body, answer.status, headers, "text/plain")
    return Response(msgspec.json.encode(answer.body), answer.status, headers, "application/json")


def _is_small(request: Request) -> bool:
    length = request.headers.get("content-length", "")
    if not length:
        return "transfer-encoding" not in request.headers
    return length.isdecimal() and int(length) <= SMALL_BODY_BYTES
