"""Health, readiness and metrics."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from tape.errors import TapeError
from tape.journal.journal import Journal
from tape.telemetry.metrics import Metrics


def build_app(journal: Journal, metrics: Metrics) -> Starlette:
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

    return Starlette(
        routes=[
            Route("/", healthz),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/metrics", show_metrics),
        ]
    )


def _status(request: Request, status: str, code: int = 200) -> Response:
    if "application/json" in request.headers.get("accept", ""):
        return JSONResponse({"status": status}, code)
    return PlainTextResponse(f"{status}\n", code)
