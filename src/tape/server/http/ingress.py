"""`POST /ingress/{listener}`: webhook deliveries, in a server and in a gateway."""

from __future__ import annotations

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tape.errors import InvalidRequest
from tape.model.principal import SYSTEM_SCOPE, Principal, set_principal
from tape.subscriptions.ingress.ingress import Ingress, IngressResponse

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
            answer = await self._ingress.receive(request.path_params["name"], request.headers.raw, request.stream())
        except ClientDisconnect as error:
            raise InvalidRequest("the sender disconnected before the end of the body.") from error
        return _response(answer, request)


def _response(answer: IngressResponse, request: Request) -> Response:
    headers = {}
    if answer.retry_after_s:
        headers["retry-after"] = str(answer.retry_after_s)
    if answer.closes and not _is_small(request):
        headers["connection"] = "close"
    return Response(msgspec.json.encode(answer.body), answer.status, headers, "application/json")


def _is_small(request: Request) -> bool:
    length = request.headers.get("content-length", "")
    if not length:
        return "transfer-encoding" not in request.headers
    return length.isdecimal() and int(length) <= SMALL_BODY_BYTES
