"""The process of `tape gateway`: verifies deliveries and forwards them to a server; without database or keys."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, Gauge
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tape import __version__
from tape.base.config import parse_address
from tape.base.telemetry.metrics import Metrics
from tape.errors import InvalidConfig, TapeError
from tape.server.http.ingress import IngressRoutes
from tape.server.http.protocol import HttpConnection
from tape.server.http.router import App
from tape.server.sockets import bind, join
from tape.subscriptions.api_client import Control
from tape.subscriptions.dispatch.http import ServerDispatch
from tape.subscriptions.ingress.gateway import EMITTER, FRESH_S, WORKER, GatewayDispatch, RemoteListeners, post_events
from tape.subscriptions.ingress.ingress import Ingress
from tape.subscriptions.ingress.listeners import Listener, Listeners
from tape.subscriptions.ingress.spooling_dispatch import SpoolingDispatch

GRACE_S = 10


class Gateway:
    """Use as an async context manager; `address` is the address it listens on."""

    def __init__(
        self,
        server_url: str,
        token: str,
        listen: str = "127.0.0.1:0",
        *,
        fresh_s: float = FRESH_S,
        body_timeout_s: float = 10.0,
    ) -> None:
        if not token:
            raise InvalidConfig("A gateway needs the server's internal token; set TAPE_INTERNAL_API_TOKEN.")
        self.metrics = Metrics()
        self._build = Gauge("tape_gateway_build_info", "Always 1", ["version"], registry=self.metrics.registry)
        self._build.labels(__version__).set(1)
        self._control = Control(server_url, token)
        self._forward = GatewayDispatch(self._control)
        self._remote = RemoteListeners(self._control)
        self._spooling = SpoolingDispatch(
            self._forward, self._replays, partial(post_events, self._control), self._reveal, self.metrics
        )
        self._ingress = Ingress(
            Listeners(self._remote, fresh_s),
            self._spooling,
            partial(post_events, self._control),
            self.metrics,
            body_timeout_s=body_timeout_s,
            emitter=EMITTER,
        )
        host, port = parse_address("listen", listen)
        self._listening = bind("listen", host, port)
        self._listening.listen(1_024)
        self.address = join(host, self._listening.getsockname()[1])
        config = uvicorn.Config(
            self._app(),
            http=HttpConnection,
            ws="none",
            server_header=False,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=GRACE_S,
        )
        self._http = _Http(config)
        self._serving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Gateway:
        self._serving = asyncio.create_task(self._http.serve([self._listening]))
        self._spooling.recover(self._remote)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._http.should_exit = True
        assert self._serving is not None
        await self._serving
        await self._spooling.close()
        await self._forward.close()
        await self._ingress.close()
        self._control.close()

    def _replays(self, listener: Listener) -> ServerDispatch:
        return ServerDispatch(self._control, listener.ref, worker_id=WORKER, emitter=EMITTER)

    async def _reveal(self, alias: str, hosts: Sequence[str]) -> Any:
        return await asyncio.to_thread(self._control.credential, alias, hosts)

    def _app(self) -> App:
        app = App(self.metrics)
        app.add("POST", "/ingress/", IngressRoutes(self._ingress).deliver)
        app.add("GET", "/healthz", self._healthz)
        app.add("GET", "/livez", self._healthz)
        app.add("GET", "/readyz", self._readyz)
        app.add("GET", "/metrics", self._show_metrics)
        return app

    async def _healthz(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _readyz(self, request: Request) -> Response:
        try:
            await self._control.ask("GET", "/api/internal/ingress")
        except TapeError as error:
            return PlainTextResponse(f"not ready: {error}\n", 503)
        return PlainTextResponse("ready\n")

    async def _show_metrics(self, request: Request) -> Response:
        return Response(self.metrics.render(), media_type=CONTENT_TYPE_LATEST)


class _Http(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: `tape gateway` handles them."""
        yield
