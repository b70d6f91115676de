"""Routing: exact paths, request metrics, errors as responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tape.base.telemetry.metrics import Metrics
from tape.model.tenant_names import MARK
from tape.server.admission import TICKET
from tape.server.http.problems import error_response, not_found, wrong_method

Handler = Callable[[Request], Awaitable[Response]]


class App:
    """An ASGI application with a handful of exact paths."""

    def __init__(self, metrics: Metrics, refuse: Callable[[Scope], Response | None] = lambda _: None) -> None:
        self._metrics = metrics
        self._refuse = refuse
        self._routes: dict[str, dict[str, ASGIApp]] = {}
        self._prefixes: dict[str, dict[str, ASGIApp]] = {}

    def add(self, method: str, path: str, handler: Handler) -> None:
        """Add a route. A path that ends with a slash takes a `name` after it, plain or qualified with a tenant.

        A segment `{}` is the `owner`.
        """
        table = self._prefixes if path.endswith("/") and path != "/" else self._routes
        methods = table.setdefault(path, {})
        methods[method] = _answering(handler)
        if method == "GET":
            methods["HEAD"] = methods[method]

    def add_raw(self, method: str, path: str, app: ASGIApp) -> None:
        """Add a route that is served by an ASGI application."""
        self._routes.setdefault(path, {})[method] = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        status = 0

        async def recording_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        route, methods = self._find(scope)
        handler = (methods or {}).get(scope["method"])
        try:
            if (refusal := self._refuse(scope)) is not None:
                await refusal(scope, receive, recording_send)
            elif methods is None:
                await not_found()(scope, receive, recording_send)
            elif handler is None:
                await wrong_method(*sorted(methods))(scope, receive, recording_send)
            else:
                await handler(scope, receive, recording_send)
        except Exception as error:
            answer = error_response(error)
            if status == 0:
                await answer(scope, receive, recording_send)
        finally:
            if (ticket := scope.get(TICKET)) is not None:
                ticket.leave()
            self._metrics.http_requests.labels(route, str(status)).inc()

    def _find(self, scope: Scope) -> tuple[str, dict[str, ASGIApp] | None]:
        path = scope["path"]
        if (methods := self._routes.get(path)) is not None:
            return path, methods
        before, slash, name = path.rpartition("/")
        if name and (methods := self._prefixes.get(before + slash)) is not None:
            scope["path_params"] = {"name": name}
            return before + slash, methods
        above, _, owner = before.rpartition("/")
        if name and owner.startswith(MARK) and (methods := self._prefixes.get(f"{above}/")) is not None:
            scope["path_params"] = {"name": f"{owner}/{name}"}
            return f"{above}/", methods
        nested = f"{above}/{{}}/"
        if name and owner and (methods := self._prefixes.get(nested)) is not None:
            scope["path_params"] = {"name": name, "owner": owner}
            return nested, methods
        return "other", None


def _answering(handler: Handler) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        response = await handler(Request(scope, receive))
        if (ticket := scope.get(TICKET)) is not None:
            ticket.end_turn()
        await response(scope, receive, send)

    return app
