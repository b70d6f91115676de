"""The hosts of a provider on this machine: a TLS server behind the proxy that public hosts are reached through."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tape.engine.security.dev_certificates import DevAuthority

HOSTS = ("sns.eu-west-1.amazonaws.com", "api.paypal.com", "api.sandbox.paypal.com")


class ProviderHost:
    """Answers paths with `pages`, or 404; `requests` are the hosts and paths that were asked for."""

    def __init__(self, authority: DevAuthority) -> None:
        self.pages: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        host = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                host.requests.append((self.headers["host"], self.path))
                page = host.pages.get(self.path.partition("?")[0])
                self.send_response(404 if page is None else 200)
                self.send_header("content-length", str(len(page or b"")))
                self.end_headers()
                self.wfile.write(page or b"")

            def log_message(self, *_: object) -> None:
                pass

        pair = authority.server(HOSTS)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.cert, pair.key)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._proxy = socket.create_server(("127.0.0.1", 0))
        self.proxy_url = f"http://127.0.0.1:{self._proxy.getsockname()[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._proxy.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._proxy.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += client.recv(1)
        with client, socket.create_connection(self._server.server_address[:2]) as target:
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            back = threading.Thread(target=_pipe, args=(target, client), daemon=True)
            back.start()
            _pipe(client, target)
            back.join()


def _pipe(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65_536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


@contextmanager
def provider_host(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProviderHost]:
    """A provider host that clients of this process trust and reach under the names of `HOSTS`."""
    authority = DevAuthority(folder / "authority")
    host = ProviderHost(authority)
    monkeypatch.setenv("TAPE_HTTP_PROXY", host.proxy_url)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.cert))
    try:
        yield host
    finally:
        host.close()


class Signer:
    """A key and its certificate by openssl, which signs as providers do."""

    def __init__(self, folder: Path, name: str, *more: str, bits: int = 2_048) -> None:
        self._key, self.cert = folder / f"{name}.key", folder / f"{name}.pem"
        request = ["openssl", "req", "-x509", "-newkey", f"rsa:{bits}", "-nodes", "-subj", f"/CN={name}"]
        files = ["-keyout", str(self._key), "-out", str(self.cert)]
        subprocess.run([*request, *files, *(more or ("-days", "2"))], check=True, capture_output=True)

    @property
    def pem(self) -> bytes:
        return self.cert.read_bytes()

    def sign(self, text: bytes, digest: str = "sha256") -> bytes:
        made: Any = ["openssl", "dgst", f"-{digest}", "-sign", str(self._key)]
        return subprocess.run(made, input=text, capture_output=True, check=True).stdout
