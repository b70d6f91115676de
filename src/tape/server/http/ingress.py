"""`POST /ingress/{listener}`: deliveries from outside, in a server and in a gateway alike."""

from __future__ import annotations

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tape.errors import InvalidRequest
from tape.subscriptions.ingress.ingress import Ingress, IngressResponse

# A body that nobody has read is not waited for if it is larger than this: the connection ends instead.
SMALL_BODY_BYTES = 64 << 10


class IngressDoor:
    """Serves deliveries."""

    def __init__(self, ingress: Ingress) -> None:
        self._ingress = ingress

    async def deliver(self, request: Request) -> Response:
        """Take a delivery; 202 when its message is durable."""
        try:
            told = await self._ingress.receive(request.path_params["name"], request.headers.raw, request.stream())
        except ClientDisconnect as error:
            raise InvalidRequest("the sender went away in the middle of its delivery.") from error
        return _response(told, request)


def _response(told: IngressResponse, request: Request) -> Response:
    headers = {}
    if told.retry_after_s:
        headers["retry-after"] = str(told.retry_after_s)
    if told.closes and not _is_small(request):
        headers["connection"] = "close"
    return Response(msgspec.json.encode(told.body), told.status, headers, "application/json")


def _is_small(request: Request) -> bool:
    length = request.headers.get("content-length", "")
    if not length:
        return "transfer-encoding" not in request.headers
    return length.isdecimal() and int(length) <= SMALL_BODY_BYTES
