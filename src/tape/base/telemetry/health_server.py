"""HTTP server of a process without a web server: `/livez`, `/readyz`, `/backlog` and `/metrics`."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import make_wsgi_app

from tape.base.url_mask import mask_urls
from tape.errors import InvalidConfig

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment
    from prometheus_client import CollectorRegistry

# A client that sends nothing for so long is disconnected.
REQUEST_TIMEOUT_S = 10.0

Problems = Callable[[], Mapping[str, str]]


class HealthServer:
    """Serves health and metrics from threads of its own, so that it answers while the process is busy.

    `not_ready` and `not_alive` return the current problems by what has them; an empty mapping is a 200, any other a
    503 with the problems as JSON. Without `not_ready` the process is ready while it is alive.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        host: str,
        port: int,
        *,
        not_ready: Problems | None = None,
        not_alive: Problems = dict,
        backlog: Callable[[], Mapping[str, int]] | None = None,
    ) -> None:
        self._metrics: Callable[..., Iterable[bytes]] = make_wsgi_app(registry)
        self._not_ready = not_ready or not_alive
        self._not_alive = not_alive
        self._backlog = backlog
        try:
            self._server = _Server(host, port)
        except OSError as error:
            raise InvalidConfig(f"{host}:{port} cannot be listened on: {error.strerror or error}.") from error
        self._server.set_app(self._answer)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="tape-health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        match environ.get("PATH_INFO", ""):
            case "/livez" | "/healthz":
                return _json(start, *_status("alive", self._not_alive()))
            case "/readyz":
                return _json(start, *_status("ready", self._not_ready()))
            case "/backlog" if self._backlog is not None:
                return _json(start, "200 OK", dict(self._backlog()))
            case "/" | "/metrics":
                return self._metrics(environ, start)
            case _:
                return _json(start, "404 Not Found", {"error": "there is /livez, /readyz and /metrics"})


def _status(name: str, problems: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    reasons = {what: mask_urls(text) for what, text in problems.items()}
    return ("503 Service Unavailable" if reasons else "200 OK"), {name: not reasons, "reasons": reasons}


def _json(start: StartResponse, status: str, content: Mapping[str, Any]) -> Iterable[bytes]:
    body = json.dumps(content).encode() + b"\n"
    start(status, [("content-type", "application/json"), ("content-length", str(len(body)))])
    return [body]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        # HTTPServer looks up its own host name here, which can take seconds without a name server.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_TIMEOUT_S

    def log_message(self, *_: Any) -> None:
        """Probes come every few seconds and are not logged."""
