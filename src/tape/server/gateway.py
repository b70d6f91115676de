"""The process of `tape gateway`: verifies deliveries and forwards them to a server; without database or keys."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, Gauge
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tape import __version__
from tape.base.config import TlsFiles, check_encryption, is_loopback, parse_address
from tape.base.telemetry.metrics import Metrics
from tape.base.tls import load_client_tls
from tape.errors import IdentityRequired, InvalidConfig, TapeError
from tape.server.http.http_server import HttpServer
from tape.server.http.ingress import IngressRoutes
from tape.server.http.protocol import KEY
from tape.server.http.router import App
from tape.server.sockets import bind, join
from tape.server.tls import ServerTls
from tape.subscriptions.api_client import Control
from tape.subscriptions.dispatch.http import ServerDispatch, ServerDownstreams, ServerReadiness
from tape.subscriptions.ingress.gateway import EMITTER, FRESH_S, WORKER, GatewayDispatch, RemoteListeners, post_events
from tape.subscriptions.ingress.ingress import Ingress
from tape.subscriptions.ingress.listeners import Listener, Listeners
from tape.subscriptions.ingress.spooling_dispatch import SpoolingDispatch

log = logging.getLogger(__name__)

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
        tls: TlsFiles | None = None,
        insecure: bool = False,
    ) -> None:
        if not token and not load_client_tls().cert:
            raise InvalidConfig(
                "A gateway needs a service key or a client certificate with the scopes `gateway` and `tenant:*`, or the"
                " server's internal token; set TAPE_TOKEN, TAPE_CLIENT_CERT and TAPE_CLIENT_KEY, or"
                " TAPE_INTERNAL_API_TOKEN."
            )
        tls = tls or TlsFiles()
        check_encryption("listen", listen, has_tls=tls.is_on, insecure=insecure)
        self.metrics = Metrics()
        self._tls = ServerTls(tls, self.metrics) if tls.is_on else None
        self._build = Gauge("tape_gateway_build_info", "Always 1", ["version"], registry=self.metrics.registry)
        self._build.labels(__version__).set(1)
        self._control = Control(server_url, token)
        self._forward = GatewayDispatch(self._control)
        self._remote = RemoteListeners(self._control)
        self._spooling = SpoolingDispatch(
            self._forward,
            self._replays,
            partial(post_events, self._control),
            self._reveal,
            self.metrics,
            partial(ServerDownstreams, self._control),
            self._check_readiness,
        )
        self._ingress = Ingress(
            Listeners(self._remote, fresh_s),
            self._spooling,
            partial(post_events, self._control),
            self.metrics,
            body_timeout_s=body_timeout_s,
            emitter=EMITTER,
            readiness=self._check_readiness,
        )
        host, port = parse_address("listen", listen)
        self._listening = bind("listen", host, port)
        self._listening.listen(1_024)
        self.address = join(host, self._listening.getsockname()[1])
        # Whether other machines reach it without TLS, because `insecure` is set.
        self.is_exposed = self._tls is None and not is_loopback(host)
        if self.is_exposed:
            log.warning("insecure is set: other machines reach %s without TLS", self.address)
        self._routes = IngressRoutes(self._ingress)
        self._http = HttpServer(self._app(), self.metrics, tls=self._tls, grace_s=GRACE_S)
        self._serving: asyncio.Task[None] | None = None

    def _check_readiness(self, listener: Listener) -> ServerReadiness:
        return ServerReadiness(self._control, listener.subscription_id, EMITTER)

    async def __aenter__(self) -> Gateway:
        self._serving = asyncio.create_task(self._http.serve([self._listening]))
        if self._tls is not None:
            self._tls.start()
        self._spooling.recover(self._remote)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._http.request_stop()
        if self._tls is not None:
            await self._tls.close()
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
        app.add("POST", "/ingress/", self._deliver)
        app.add("GET", "/ingress/", self._handshake)
        app.add("GET", "/healthz", self._healthz)
        app.add("GET", "/livez", self._healthz)
        app.add("GET", "/readyz", self._readyz)
        app.add("GET", "/metrics", self._show_metrics)
        return app

    async def _deliver(self, request: Request) -> Response:
        """Accept a delivery; with `tls_client_ca` only from a sender with a verified certificate."""
        self._check_certificate(request)
        return await self._routes.deliver(request)

    async def _handshake(self, request: Request) -> Response:
        self._check_certificate(request)
        return await self._routes.handshake(request)

    def _check_certificate(self, request: Request) -> None:
        if self._tls is not None and self._tls.files.client_ca and request.scope[KEY].certificate is None:
            raise IdentityRequired("this gateway accepts deliveries with a client certificate only (tls_client_ca).")

    async def _healthz(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _readyz(self, request: Request) -> Response:
        try:
            await self._control.ask("GET", "/api/internal/ingress")
        except TapeError as error:
            if self._spooling.has_open_spool:  # what takes it out of service would lose what the spool is for
                return PlainTextResponse(f"ready, deliveries are spooled: {error}\n")
            return PlainTextResponse(f"not ready: {error}\n", 503)
        return PlainTextResponse("ready\n")

    async def _show_metrics(self, request: Request) -> Response:
        return Response(self.metrics.render(), media_type=CONTENT_TYPE_LATEST)
