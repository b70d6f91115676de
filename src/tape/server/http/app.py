"""The HTTP door: its routes, and what is around all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp

from tape.base.telemetry.metrics import Metrics
from tape.errors import TapeError
from tape.journal.journal import Journal
from tape.server.http.artifacts import ArtifactDoor
from tape.server.http.cors import Cors
from tape.server.http.documents import show_asyncapi, show_openapi
from tape.server.http.info import RuntimeInfo
from tape.server.http.ingress import IngressDoor
from tape.server.http.publish import Publishing
from tape.server.http.queries import Queries
from tape.server.http.router import App
from tape.server.http.stream import EventStream


class Doors(NamedTuple):
    """What is behind the routes."""

    stream: EventStream
    queries: Queries
    publishing: Publishing
    artifacts: ArtifactDoor
    info: RuntimeInfo
    ingress: IngressDoor
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
    app.add("POST", "/ingress/", doors.ingress.deliver)
    doors.add_api(app)
    return Cors(app, origins)


def _status(request: Request, status: str, code: int = 200) -> Response:
    if "application/json" in request.headers.get("accept", ""):
        return JSONResponse({"status": status}, code)
    return PlainTextResponse(f"{status}\n", code)
