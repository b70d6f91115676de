"""What a client proves itself with."""

from __future__ import annotations

import base64
import http.server
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest

from tape import AsyncTapeClient
from tape.client.channel import is_secure, target_of
from tape.errors import RpcFailed


class Listener:
    """A gRPC server that refuses every call and remembers what came with it."""

    def __init__(self) -> None:
        self.url = ""
        self.authorizations: list[str | None] = []

    def service(self, details: grpc.HandlerCallDetails) -> None:
        self.authorizations.append(dict(details.invocation_metadata).get("authorization"))


class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def service(self, details: grpc.HandlerCallDetails) -> None:
        self._listener.service(details)


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    listener = Listener()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Handler(listener),))
    listener.url = f"tape://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    yield listener
    await server.stop(None)


async def call(listener: Listener, **options: Any) -> str | None:
    """The authorization that a call of such a client carries."""
    async with AsyncTapeClient(listener.url, **options) as client:
        with pytest.raises(RpcFailed, match="UNIMPLEMENTED"):
            await client.get_run("r-1")
    return listener.authorizations[-1]


async def test_a_token_is_shown_with_every_call(listener: Listener) -> None:
    assert await call(listener, id_token="t-1") == "Bearer t-1"


async def test_a_token_may_come_from_the_environment(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await call(listener) is None
    monkeypatch.setenv("TAPE_INTERNAL_API_TOKEN", "t-3")
    assert await call(listener) == "Bearer t-3"
    monkeypatch.setenv("TAPE_TOKEN", "t-2")
    assert await call(listener) == "Bearer t-2"
    assert await call(listener, id_token="t-1") == "Bearer t-1"
    assert await call(listener, auth=False) is None


class MetadataServer(http.server.BaseHTTPRequestHandler):
    """Stands where Google's metadata server does on its machines."""

    issued: list[str]

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Metadata-Flavor", "Google")
        if "/identity" in self.path:
            body = json.dumps({"exp": time.time() + 3600, "n": len(self.issued)}).encode()
            token = f"e30.{base64.urlsafe_b64encode(body).decode().rstrip('=')}.sig"
            self.issued.append(self.path)
            answer, kind = token.encode(), "text/plain"
        else:
            answer, kind = json.dumps({"email": "a@b", "scopes": [], "aliases": []}).encode(), "application/json"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def issued(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    handler = type("Handler", (MetadataServer,), {"issued": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        address = f"127.0.0.1:{server.server_port}"
        monkeypatch.setenv("GCE_METADATA_HOST", address)
        monkeypatch.setenv("GCE_METADATA_IP", address)
        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield handler.issued  # type: ignore[attr-defined]
        server.shutdown()


async def test_a_token_for_an_audience_is_fetched_once_and_used_until_it_ends(
    listener: Listener, issued: list[str]
) -> None:
    pytest.importorskip("google.oauth2.id_token", reason="the extra gcp is not installed")
    async with AsyncTapeClient(listener.url, audience="https://tape.example") as client:
        for _ in range(3):
            with pytest.raises(RpcFailed):
                await client.get_run("r-1")
    assert len(issued) == 1
    assert "audience=https" in issued[0]
    assert len(set(listener.authorizations)) == 1
    assert str(listener.authorizations[0]).startswith("Bearer e30.")


def test_an_encrypted_way_has_its_own_scheme_and_port() -> None:
    assert is_secure("tapes://tape.example")
    assert target_of("tapes://tape.example") == "tape.example:443"
    assert target_of("https://tape.example:8443") == "tape.example:8443"
    assert not is_secure("tape://localhost")
