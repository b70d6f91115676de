"""The HTTP server of a process: uvicorn with the limits of `HttpConnection`, with or without TLS."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from tape.base.telemetry.metrics import Metrics
from tape.server.http.protocol import HttpConnection, HttpLimits, limited_connection
from tape.server.http.tls_listener import TlsListener
from tape.server.tls import ServerTls


class HttpServer(uvicorn.Server):
    """Uvicorn that stops on an event: by itself it polls ten times a second, and waits without open connections too."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        *,
        limits: HttpLimits | None = None,
        tls: ServerTls | None = None,
        grace_s: float = 1.0,
    ) -> None:
        self._limits = limits or HttpLimits()
        self._metrics = metrics
        self._tls = tls
        self._protocol = limited_connection(self._limits)
        config = uvicorn.Config(
            app,
            http=self._protocol,
            ws="none",
            server_header=False,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=max(int(grace_s), 1),
        )
        super().__init__(config)
        self._stop_requested = asyncio.Event()

    def request_stop(self) -> None:
        """Accept no more connections, and end when the open requests are answered."""
        self.should_exit = True
        self._stop_requested.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on the sockets, with TLS if there is a certificate."""
        if self._tls is None:
            await super().startup(sockets)
            return
        await self.lifespan.startup()
        self.servers: list[Any] = [self._listen(each, self._tls) for each in sockets or ()]
        self.started = True

    async def main_loop(self) -> None:
        """Update the Date header once a second until a stop is requested."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._stop_requested.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let open requests finish."""
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)
        for connection in list(self.server_state.connections):  # they have had the time of `grace_s`
            connection.transport.abort()
        for each in (*self.servers, *(sockets or ())):
            each.close()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: the command handles them for the whole process."""
        yield

    def _listen(self, listening: socket.socket, tls: ServerTls) -> TlsListener:
        return TlsListener(
            listening,
            tls,
            self._limits,
            self._metrics,
            self._new_connection,
            lambda: len(self.server_state.connections),
        )

    def _new_connection(self) -> HttpConnection:
        return self._protocol(self.config, self.server_state, self.lifespan.state)
