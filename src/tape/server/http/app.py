"""The HTTP application: its routes and middleware."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp

from tape.base.telemetry.metrics import Metrics
from tape.server.http.artifacts import ArtifactRoutes
from tape.server.http.calls import CallRoutes
from tape.server.http.cors import Cors
from tape.server.http.documents import show_asyncapi, show_openapi
from tape.server.http.foreign_pages import ForeignPages
from tape.server.http.info import InfoRoutes
from tape.server.http.ingress import IngressRoutes
from tape.server.http.publish import PublishRoutes
from tape.server.http.queries import QueryRoutes
from tape.server.http.router import App
from tape.server.http.stream import EventStream
from tape.server.readiness import Readiness


class Endpoints(NamedTuple):
    """The handlers of the routes."""

    stream: EventStream
    queries: QueryRoutes
    publishing: PublishRoutes
    artifacts: ArtifactRoutes
    info: InfoRoutes
    ingress: IngressRoutes
    calls: CallRoutes
    add_api: Callable[[App], None]


def build_app(readiness: Readiness, metrics: Metrics, endpoints: Endpoints, origins: frozenset[str]) -> ASGIApp:
    """The ASGI application."""

    async def healthz(request: Request) -> Response:
        return _status(request, "ok")

    async def readyz(request: Request) -> Response:
        if problem := await readiness.problem():
            return _status(request, problem, 503, {"Retry-After": "1"})
        return _status(request, "; ".join(["ready", *readiness.warnings]))

    async def show_metrics(request: Request) -> Response:
        return Response(metrics.render(), media_type=CONTENT_TYPE_LATEST)

    app = App(metrics, ForeignPages(origins).refuse)
    app.add("GET", "/", healthz)
    app.add("GET", "/healthz", healthz)
    app.add("GET", "/readyz", readyz)
    app.add("GET", "/metrics", show_metrics)
    app.add_raw("GET", "/v1/events", endpoints.stream.serve)
    app.add_raw("HEAD", "/v1/events", endpoints.stream.serve)
    app.add("POST", "/v1/events", endpoints.publishing.publish)
    app.add("GET", "/v1/artifacts/", endpoints.artifacts.get)
    app.add("POST", "/v1/events/list", endpoints.queries.list_events)
    app.add("POST", "/v1/events/aggregate", endpoints.queries.aggregate)
    app.add("POST", "/v1/control/runtime.info", endpoints.info.info)
    app.add("GET", "/v1/calls", endpoints.calls.upgrade)
    app.add("GET", "/v1/openapi.json", show_openapi)
    app.add("GET", "/v1/asyncapi.json", show_asyncapi)
    app.add("POST", "/ingress/", endpoints.ingress.deliver)
    app.add("GET", "/ingress/", endpoints.ingress.handshake)
    endpoints.add_api(app)
    return Cors(app, origins)


def _status(request: Request, status: str, code: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    if "application/json" in request.headers.get("accept", ""):
        return JSONResponse({"status": status}, code, headers)
    return PlainTextResponse(f"{status}\n", code, headers)
