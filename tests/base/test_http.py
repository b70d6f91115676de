"""The one client for outgoing HTTP requests: policy, redirects, time and size limits, typed errors."""

from __future__ import annotations

import ast
import asyncio
import gzip
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tape
from tape.base.addresses import OPERATOR, PUBLIC_ONLY
from tape.base.http import HttpClient, Response, parse_retry_after, shown
from tape.errors import (
    AddressNotAllowed,
    HttpInterrupted,
    HttpResponseTooLarge,
    HttpUnreachable,
    InvalidConfig,
    InvalidHttpRequest,
)
from tests.services import free_port, wait_for

Answer = Callable[[socket.socket, bytes], None]


class Scripted:
    """An HTTP server on loopback that answers each request by calling a function with the socket."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family)
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.connections = 0
        self.requests: list[bytes] = []
        self.answer: Answer = say(b"ok")
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while request := self._read(connection):
                    self.requests.append(request)
                    self.answer(connection, request)
            except OSError:
                pass  # the client closed the connection, which is what some tests want

    def _read(self, connection: socket.socket) -> bytes:
        request = b""
        while b"\r\n\r\n" not in request:
            if not (more := connection.recv(65_536)):
                return b""
            request += more
        head, _, body = request.partition(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        while len(body) < length:
            body += connection.recv(65_536)
        return head + b"\r\n\r\n" + body


def say(body: bytes, status: str = "200 OK", *headers: str) -> Answer:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return lambda connection, request: connection.sendall("\r\n".join(lines).encode() + body)


def send_raw(*parts: bytes) -> Answer:
    def answer(connection: socket.socket, request: bytes) -> None:
        for part in parts:
            connection.sendall(part)
        connection.shutdown(socket.SHUT_WR)

    return answer


def drip(start: bytes, more: bytes) -> Answer:
    """Send the start and then more bytes, a few at a time and without end."""

    def answer(connection: socket.socket, request: bytes) -> None:
        connection.sendall(start)
        while True:
            connection.sendall(more)
            time.sleep(0.01)  # the pace of the slow server, not a wait for something

    return answer


@pytest.fixture
def server() -> Iterator[Scripted]:
    made = Scripted()
    yield made
    made.close()


@pytest.fixture
def client() -> Iterator[HttpClient]:
    made = HttpClient(OPERATOR, timeout_s=10.0, max_body_bytes=1_000)
    yield made
    made.close()


def resolver(monkeypatch: pytest.MonkeyPatch, *answers: str) -> None:
    """Resolve names to these addresses, one after the other."""
    left = iter(answers)

    def resolve(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(left), port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


# ── requests and responses ───────────────────────────────────────────────────────────────────────


def test_a_request_carries_method_path_headers_and_body(server: Scripted, client: HttpClient) -> None:
    server.answer = say(b'{"a": 1}', "201 Created", "X-Seen: yes")
    response = client.request("PUT", f"{server.url}/p?q=1#f", body=b"hello", headers={"X-Mine": "1"})
    assert (response.status, response.reason, response.json()) == (201, "Created", {"a": 1})
    assert response.headers["x-seen"] == "yes"
    assert response.is_success
    (request,) = server.requests
    assert request.startswith(b"PUT /p?q=1 HTTP/1.1\r\n")
    assert b"X-Mine: 1" in request
    assert request.endswith(b"\r\n\r\nhello")


def test_connections_are_reused(server: Scripted, client: HttpClient) -> None:
    for _ in range(3):
        client.request("GET", server.url)
    assert (len(server.requests), server.connections) == (3, 1)


FORKING = """
import asyncio, os, sys
from tape.base.addresses import OPERATOR
from tape.base.http import HttpClient

client = HttpClient(OPERATOR)
asyncio.run(client.send("GET", sys.argv[1]))
child = os.fork()
assert asyncio.run(client.send("GET", sys.argv[1])).text == "ok"
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_uses_connections_and_threads_of_its_own(server: Scripted) -> None:
    subprocess.run([sys.executable, "-c", FORKING, server.url], check=True, timeout=60)
    assert (len(server.requests), server.connections) == (3, 2)


async def test_the_asynchronous_face_sends_several_requests_at_a_time(server: Scripted) -> None:
    client = HttpClient(OPERATOR, connections=3)
    together = threading.Barrier(3)

    def answer(connection: socket.socket, request: bytes) -> None:
        together.wait(timeout=60)
        say(b"ok")(connection, request)

    server.answer = answer
    responses = await asyncio.gather(*(client.send("GET", server.url) for _ in range(3)))
    assert [response.text for response in responses] == ["ok"] * 3
    client.close()


def test_user_and_password_of_the_url_are_sent_as_basic_credentials(server: Scripted, client: HttpClient) -> None:
    client.request("GET", server.url.replace("//", "//me:p%40ss@"))
    assert b"authorization: Basic bWU6cEBzcw==" in server.requests[0].replace(b"Authorization", b"authorization")


def test_other_proxies_of_the_environment_are_not_used(
    server: Scripted, client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    assert client.request("GET", server.url).status == 200


class Proxy(Scripted):
    """A proxy that answers requests itself and tunnels nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.answer = say(b"proxied")
        monkeypatch.setenv("TAPE_HTTP_PROXY", f"http://me:p%40ss@127.0.0.1:{self.port}")


def test_a_configured_proxy_gets_the_requests_to_public_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = Proxy(monkeypatch)
    for name in ("public.invalid", "8.8.8.8"):
        assert HttpClient().request("GET", f"http://{name}/x").text == "proxied"
    assert [request.split(b"\r\n")[0] for request in proxy.requests] == [
        b"GET http://public.invalid/x HTTP/1.1",
        b"GET http://8.8.8.8/x HTTP/1.1",
    ]
    assert b"basic bwu6cebzcw==" in proxy.requests[0].lower()
    proxy.answer = say(b"", "403 Forbidden")
    with pytest.raises(HttpUnreachable, match="403"):
        HttpClient().request("GET", "https://public.invalid/x")
    assert proxy.requests[-1].startswith(b"CONNECT public.invalid:443 ")
    proxy.close()


def test_a_configured_proxy_gets_no_request_to_private_hosts(
    server: Scripted, client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = Proxy(monkeypatch)
    with pytest.raises(AddressNotAllowed):
        HttpClient().request("GET", server.url)
    monkeypatch.setenv("TAPE_HTTP_ALLOW", "127.0.0.1")
    assert HttpClient().request("GET", server.url).text == "ok"
    assert client.request("GET", server.url).text == "ok"
    assert proxy.connections == 0
    proxy.close()


def test_a_proxy_that_cannot_be_reached_is_unreachable_and_shows_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPE_HTTP_PROXY", f"http://me:hunter2@127.0.0.1:{free_port()}")
    for scheme in ("http", "https"):
        with pytest.raises(HttpUnreachable) as raised:
            HttpClient().request("GET", f"{scheme}://public.invalid/")
        assert "hunter2" not in str(raised.value)
    monkeypatch.setenv("TAPE_HTTP_PROXY", "proxy:hunter2")
    with pytest.raises(InvalidConfig, match="TAPE_HTTP_PROXY must look like") as invalid:
        HttpClient().request("GET", "http://public.invalid/")
    assert "hunter2" not in str(invalid.value)


@pytest.mark.parametrize(
    ("status", "is_retryable"), [(200, False), (404, False), (408, True), (425, True), (429, True), (503, True)]
)
def test_a_status_says_whether_the_request_may_succeed_later(status: int, is_retryable: bool) -> None:
    assert Response(status, "", {}, b"").is_retryable is is_retryable


@pytest.mark.parametrize(("header", "least", "most"), [("7", 7, 7), ("Fri, 31 Dec 2100 23:59:59 GMT", 1e9, 1e11)])
def test_retry_after_is_read_as_a_number_or_a_date(header: str, least: float, most: float) -> None:
    found = Response(429, "", {"retry-after": header}, b"").retry_after_s
    assert found is not None
    assert least <= found <= most


@pytest.mark.parametrize("header", [None, "", "soon", "-1", "²"])
def test_an_unusable_retry_after_is_none(header: str | None) -> None:
    assert parse_retry_after(header) is None


# ── addresses ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1", "0x7f.1", "2130706433", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"]
)
def test_loopback_is_refused_by_default_in_every_spelling(server: Scripted, host: str) -> None:
    with pytest.raises(AddressNotAllowed, match="TAPE_HTTP_ALLOW") as raised:
        HttpClient().request("GET", f"http://{host}:{server.port}/")
    assert not raised.value.was_sent
    assert server.connections == 0


@pytest.mark.parametrize("url", ["http://[::1]/", "https://[::1]/", "http://[::127.0.0.1]/", "http://[64:ff9b:1::1]/"])
def test_an_ipv6_literal_without_a_port_is_read_whole(url: str) -> None:
    with pytest.raises(AddressNotAllowed) as raised:
        HttpClient().request("GET", url)
    assert raised.value.port in (80, 443)
    assert raised.value.host == url.partition("[")[2].partition("]")[0]


def test_a_host_of_the_allow_list_is_reached(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPE_HTTP_ALLOW", f"127.0.0.1:{server.port}")
    assert HttpClient().request("GET", server.url).status == 200
    with pytest.raises(AddressNotAllowed):
        HttpClient().request("GET", f"http://127.0.0.1:{free_port()}/")


def test_an_ipv6_host_of_the_allow_list_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        server = Scripted("::1")
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    monkeypatch.setenv("TAPE_HTTP_ALLOW", "::1")
    assert HttpClient().request("GET", f"http://[::1]:{server.port}/").status == 200
    server.close()


def test_a_name_that_is_rebound_to_loopback_is_refused_at_the_next_connection(
    server: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected: list[Any] = []
    resolver(monkeypatch, "93.184.215.14", "127.0.0.1")
    monkeypatch.setattr(socket.socket, "connect", lambda self, address: connected.append(address))
    client = HttpClient(timeout_s=0.2)
    url = f"http://partner.example.com:{server.port}/"
    with pytest.raises((HttpInterrupted, HttpUnreachable)):
        client.request("GET", url)
    with pytest.raises(AddressNotAllowed, match=r"partner\.example\.com is 127\.0\.0\.1 \(loopback\)"):
        client.request("GET", url)
    assert connected == [("93.184.215.14", server.port)]


# ── redirects ────────────────────────────────────────────────────────────────────────────────────


def test_a_redirect_is_a_response_by_default(server: Scripted, client: HttpClient) -> None:
    server.answer = say(b"", "302 Found", "Location: /moved")
    assert client.request("GET", server.url).status == 302
    assert len(server.requests) == 1


def test_a_redirect_is_followed_up_to_the_limit(server: Scripted) -> None:
    server.answer = say(b"", "302 Found", "Location: /again")
    response = HttpClient(OPERATOR, max_redirects=3).request("GET", server.url)
    assert (response.status, len(server.requests)) == (302, 4)


def test_a_redirect_to_a_host_that_is_not_allowed_is_refused(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Scripted()
    monkeypatch.setenv("TAPE_HTTP_ALLOW", f"127.0.0.1:{server.port}")
    server.answer = say(b"", "302 Found", f"Location: http://localhost:{other.port}/latest/meta-data")
    with pytest.raises(AddressNotAllowed, match=f"localhost:{other.port}"):
        HttpClient(PUBLIC_ONLY, max_redirects=5).request("GET", server.url)
    assert other.connections == 0
    other.close()


def test_credentials_and_bodies_do_not_follow_to_another_host(server: Scripted) -> None:
    other = Scripted()
    server.answer = say(b"", "303 See Other", f"Location: {other.url}/result")
    headers = {"Authorization": "Bearer secret", "X-Mine": "1"}
    HttpClient(OPERATOR, max_redirects=1).request("POST", server.url, body=b"b", headers=headers)
    (request,) = other.requests
    assert request.startswith(b"GET /result ")
    assert b"secret" not in request
    assert b"X-Mine: 1" in request
    other.close()


def test_a_redirect_to_another_scheme_is_refused(server: Scripted) -> None:
    server.answer = say(b"", "302 Found", "Location: file:///etc/passwd")
    with pytest.raises(InvalidHttpRequest):
        HttpClient(OPERATOR, max_redirects=1).request("GET", server.url)


# ── limits ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("form", ["length", "chunked", "until_close", "gzip"])
def test_a_body_over_the_limit_is_refused(server: Scripted, client: HttpClient, form: str) -> None:
    start = b"HTTP/1.1 200 OK\r\n"
    server.answer = {
        "length": say(b"x" * 1_001),
        "chunked": drip(start + b"Transfer-Encoding: chunked\r\n\r\n", b"40\r\n" + b"x" * 64 + b"\r\n"),
        "until_close": drip(start + b"\r\n", b"x" * 64),
        "gzip": say(gzip.compress(b"x" * 100_000_000), "200 OK", "Content-Encoding: gzip"),
    }[form]
    with pytest.raises(HttpResponseTooLarge, match="more than 1000 bytes") as raised:
        client.request("GET", server.url)
    assert not raised.value.retryable


def test_a_long_body_can_be_cut_and_the_client_still_works(server: Scripted, client: HttpClient) -> None:
    server.answer = say(b"x" * 1_000_000)
    response = client.request("GET", server.url, cut=10)
    assert (response.body, response.is_whole) == (b"x" * 10, False)
    server.answer = say(b"ok")
    assert client.request("GET", server.url).body == b"ok"


def test_a_body_that_is_not_wanted_is_not_waited_for(server: Scripted, client: HttpClient) -> None:
    server.answer = lambda connection, request: connection.sendall(b"HTTP/1.1 204 No Content\r\nA: b\r\n\r\n")
    assert client.request("GET", server.url, cut=0).status == 204
    server.answer = lambda connection, request: connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
    assert client.request("GET", server.url, cut=0).status == 200


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
    ids=["status", "headers", "body", "chunk"],
)
def test_a_slow_response_ends_at_the_time_limit(server: Scripted, start: bytes) -> None:
    server.answer = drip(start, b"0")
    began = time.monotonic()
    with pytest.raises(HttpInterrupted, match="in time") as raised:
        HttpClient(OPERATOR).request("GET", server.url, timeout_s=0.3)
    assert time.monotonic() - began < 5
    assert raised.value.retryable
    assert raised.value.was_sent


@pytest.mark.parametrize(
    "more",
    [
        b"X-A: 1\r\n" * 101 + b"\r\n",
        b"X-A: " + b"1" * 70_000 + b"\r\n\r\n",
        b"".join(b"X-%d: %s\r\n" % (number, b"1" * 2_000) for number in range(90)) + b"\r\n",
    ],
    ids=["many", "long", "large"],
)
def test_too_many_or_too_large_headers_are_refused(server: Scripted, client: HttpClient, more: bytes) -> None:
    server.answer = send_raw(b"HTTP/1.1 200 OK\r\n", more)
    with pytest.raises(HttpResponseTooLarge, match="headers"):
        client.request("GET", server.url)


def test_endless_informational_responses_are_refused(server: Scripted, client: HttpClient) -> None:
    server.answer = drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000)
    with pytest.raises(HttpResponseTooLarge, match="headers"):
        client.request("GET", server.url)


def test_an_endless_chunk_mark_is_refused(server: Scripted, client: HttpClient) -> None:
    server.answer = drip(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"x" * 10_000)
    with pytest.raises(HttpResponseTooLarge):
        client.request("GET", server.url)


# ── failures ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "answer",
    [
        send_raw(),
        send_raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"),
        send_raw(b"SSH-2.0-server\r\n"),
    ],
    ids=["nothing", "short", "no_http"],
)
def test_a_broken_response_leaves_open_whether_the_host_acted(
    server: Scripted, client: HttpClient, answer: Answer
) -> None:
    server.answer = answer
    with pytest.raises(HttpInterrupted) as raised:
        client.request("POST", server.url, body=b"{}")
    assert raised.value.was_sent


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:{port}/", "https://127.0.0.1:{port}/", "http://no-such-host.invalid/"]
)
def test_a_host_that_cannot_be_reached_was_sent_nothing(client: HttpClient, url: str) -> None:
    with pytest.raises(HttpUnreachable) as raised:
        client.request("GET", url.format(port=free_port()))
    assert raised.value.retryable
    assert not raised.value.was_sent


def test_a_tls_handshake_that_fails_was_sent_nothing(server: Scripted, client: HttpClient) -> None:
    with pytest.raises(HttpUnreachable):
        client.request("GET", server.url.replace("http:", "https:"), timeout_s=5)
    assert server.requests == []


@pytest.mark.parametrize(
    ("method", "url", "headers"),
    [
        ("GET", "ftp://example.com/", {}),
        ("GET", "example.com", {}),
        ("GET", "http:///path", {}),
        ("GET", "http://[::1", {}),
        ("GET", "http://example.com:99999/", {}),
        ("GET", "http://127.0.0.1:{port}/", {"X-Evil": "a\r\nb: c"}),
        ("GET", "http://127.0.0.1:{port}/", {"X-Price": "5 €"}),
        ("GET /x HTTP/1.1\r\nA: b\r\n", "http://127.0.0.1:{port}/", {}),
    ],
)
def test_a_request_that_cannot_be_sent_is_invalid_input(
    server: Scripted, client: HttpClient, method: str, url: str, headers: dict[str, str]
) -> None:
    with pytest.raises(InvalidHttpRequest) as raised:
        client.request(method, url.replace("{port}", str(server.port)), headers=headers)
    assert not raised.value.retryable
    assert server.requests == []


def test_errors_do_not_show_credentials_or_queries(client: HttpClient) -> None:
    url = f"http://me:hunter2@127.0.0.1:{free_port()}/path?token=hunter2"
    with pytest.raises(HttpUnreachable) as raised:
        client.request("GET", url)
    assert "hunter2" not in str(raised.value)
    assert shown(url).endswith("/path")


def test_a_full_pool_is_waited_for_no_longer_than_the_time_limit(server: Scripted) -> None:
    release = threading.Event()
    client = HttpClient(OPERATOR, connections=1)
    server.answer = lambda connection, request: release.wait(60) and say(b"ok")(connection, request)
    waiting = threading.Thread(target=client.request, args=("GET", server.url))
    waiting.start()
    wait_for(lambda: server.requests, "the first request")
    with pytest.raises(HttpUnreachable):
        client.request("GET", server.url, timeout_s=0.1)
    release.set()
    waiting.join()


# ── the code base ────────────────────────────────────────────────────────────────────────────────

CLIENTS = {"aiohttp", "http.client", "httpx", "requests", "urllib.request", "urllib3"}


def test_no_other_module_imports_an_http_client() -> None:
    source = Path(tape.__file__).parent
    for file in sorted(source.rglob("*.py")):
        found = {name for name in imported(ast.parse(file.read_text())) if name in CLIENTS}
        if file != source / "base/http_connections.py":
            assert not found, f"{file.relative_to(source)} imports {found}; send requests through tape.base.http"


def imported(tree: ast.Module) -> Iterator[str]:
    """The modules that a module imports, and the packages that they are in."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))
