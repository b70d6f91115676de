"""CORS: an allow-list of origins, empty by default, never `*`."""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_ALLOWED = {
    "Access-Control-Allow-Credentials": "true",
    "Access-Control-Allow-Methods": "GET, POST, PUT, DELETE, PATCH, OPTIONS",
    "Access-Control-Allow-Headers": (
        "Authorization, Content-Type, Last-Event-ID, X-Harbor-Tenant, X-Harbor-User, X-Harbor-Session,"
        " X-Harbor-Run, X-Harbor-Event-Type, Traceparent, Tracestate"
    ),
    "Access-Control-Expose-Headers": "Retry-After, Tape-Next-Cursor, Tape-Gaps",
    "Access-Control-Max-Age": "86400",
}


class Cors:
    """Answers preflight requests and adds the headers for allowed origins."""

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin", "")
        allowed = origin in self._origins

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start" and allowed:
                answer = MutableHeaders(scope=message)
                answer.add_vary_header("Origin")
                answer["Access-Control-Allow-Origin"] = origin
                answer.update(_ALLOWED)
            await send(message)

        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            await marked({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        else:
            await self._app(scope, receive, marked)
