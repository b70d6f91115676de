"""The HTTP door: its routes, and what is around all of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tape.errors import TapeError
from tape.journal.journal import Journal
from tape.server.http.artifacts import ArtifactDoor
from tape.server.http.cors import Cors
from tape.server.http.documents import show_asyncapi, show_openapi
from tape.server.http.info import RuntimeInfo
from tape.server.http.problems import not_found, refusal, wrong_method
from tape.server.http.publish import Publishing
from tape.server.http.queries import Queries
from tape.server.http.stream import EventStream
from tape.telemetry.metrics import Metrics

Handler = Callable[[Request], Awaitable[Response]]


class App:
    """An ASGI application with a handful of exact paths."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._routes: dict[str, dict[str, ASGIApp]] = {}
        self._prefixes: dict[str, dict[str, ASGIApp]] = {}

    def add(self, method: str, path: str, handler: Handler) -> None:
        """Answer a path. One that ends with a slash has a `name` after it; a part `{}` before that is its `owner`."""
        table = self._prefixes if path.endswith("/") and path != "/" else self._routes
        methods = table.setdefault(path, {})
        methods[method] = _answering(handler)
        if method == "GET":
            methods["HEAD"] = methods[method]

    def add_raw(self, method: str, path: str, app: ASGIApp) -> None:
        """Answer a path with an ASGI application."""
        self._routes.setdefault(path, {})[method] = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        status = 0

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        route, methods = self._find(scope)
        handler = (methods or {}).get(scope["method"])
        try:
            if methods is None:
                await not_found()(scope, receive, noted)
            elif handler is None:
                await wrong_method(*sorted(methods))(scope, receive, noted)
            else:
                await handler(scope, receive, noted)
        except Exception as error:
            answer = refusal(error)
            if status == 0:
                await answer(scope, receive, noted)
        finally:
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
        nested = f"{above}/{{}}/"
        if name and owner and (methods := self._prefixes.get(nested)) is not None:
            scope["path_params"] = {"name": name, "owner": owner}
            return nested, methods
        return "other", None


class Doors(NamedTuple):
    """What is behind the routes."""

    stream: EventStream
    queries: Queries
    publishing: Publishing
    artifacts: ArtifactDoor
    info: RuntimeInfo
    add_api: Callable[[App], None]


def build_app(journal: Journal, metrics: Metrics, doors: Doors, origins: frozenset[str]) -> ASGIApp:
    """The ASGI application."""

    async def healthz(request: Request) -> Response:
        return _status(request, "ok")

    async def readyz(request: Request) -> Response:
        try:
            await journal.head()
        except TapeError as error:
            return _status(request, f"store ping failed: {error}", 503)
        return _status(request, "ready")

    async def show_metrics(request: Request) -> Response:
        return Response(metrics.render(), media_type=CONTENT_TYPE_LATEST)

    app = App(metrics)
    app.add("GET", "/", healthz)
    app.add("GET", "/healthz", healthz)
    app.add("GET", "/readyz", readyz)
    app.add("GET", "/metrics", show_metrics)
    app.add_raw("GET", "/v1/events", doors.stream.serve)
    app.add_raw("HEAD", "/v1/events", doors.stream.serve)
    app.add("POST", "/v1/events", doors.publishing.publish)
    app.add("GET", "/v1/artifacts/", doors.artifacts.get)
    app.add("POST", "/v1/events/list", doors.queries.list_events)
    app.add("POST", "/v1/events/aggregate", doors.queries.aggregate)
    app.add("POST", "/v1/control/runtime.info", doors.info.info)
    app.add("GET", "/v1/openapi.json", show_openapi)
    app.add("GET", "/v1/asyncapi.json", show_asyncapi)
    doors.add_api(app)
    return Cors(app, origins)


def _answering(handler: Handler) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await (await handler(Request(scope, receive)))(scope, receive, send)

    return app


def _status(request: Request, status: str, code: int = 200) -> Response:
    if "application/json" in request.headers.get("accept", ""):
        return JSONResponse({"status": status}, code)
    return PlainTextResponse(f"{status}\n", code)
