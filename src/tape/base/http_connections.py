"""Connections of the HTTP client, on urllib3: they check the addresses they go to, and limit what they read."""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from typing import Any, NoReturn
from urllib.parse import unquote, urlsplit

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from tape.base.addresses import OPERATOR, PUBLIC_ONLY, AddressPolicy, connect
from tape.base.config import load_http_proxy
from tape.base.http import (
    CONNECT_TIMEOUT_S,
    MAX_BODY_BYTES,
    MAX_HEADER_BYTES,
    TIMEOUT_S,
    Response,
    origin_of,
    shown,
)
from tape.errors import HttpInterrupted, HttpResponseTooLarge, HttpUnreachable, InvalidHttpRequest

HOSTS = 32


class Connections:
    """The connections of one client, direct ones and those through proxies. Safe to share between threads."""

    def __init__(
        self,
        policy: AddressPolicy,
        *,
        connect_timeout_s: float,
        max_body_bytes: int,
        connections: int,
        has_proxy: bool,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._policy = policy
        self._tls = tls
        self._has_proxy = has_proxy
        self._connect_timeout_s = connect_timeout_s
        self._max_body_bytes = max_body_bytes
        self._connections = connections
        self._pools = self._new_pools("")
        self._proxied: dict[str, urllib3.PoolManager] = {}
        self._starting = threading.Lock()

    def send(
        self,
        method: str,
        url: str,
        body: bytes | None,
        headers: Mapping[str, str],
        deadline: float,
        cut: int | None,
    ) -> Response:
        """Send one request until `deadline`, a moment of time.monotonic(), and read its response."""
        wanted = _checked(url, headers)
        left_s = max(deadline - time.monotonic(), 0.001)
        try:
            answer = self._pools_for(url).request(
                method,
                url,
                body=body,
                headers=wanted,
                timeout=urllib3.Timeout(total=left_s, connect=self._connect_timeout_s),
                pool_timeout=left_s,
                redirect=False,
                preload_content=False,
            )
            try:
                content, is_whole = self._read(answer, url, cut)
            finally:
                answer.release_conn()
        except (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError, ValueError) as error:
            _translate(error, url)
        fields = {name.lower(): value for name, value in answer.headers.items()}
        return Response(answer.status, answer.reason or "", fields, content, is_whole)

    def close(self) -> None:
        """Close the connections."""
        for pools in (self._pools, *self._proxied.values()):
            pools.clear()

    def _new_pools(self, proxy: str) -> urllib3.PoolManager:
        options: dict[str, Any] = {"num_pools": HOSTS, "maxsize": self._connections, "block": True, "retries": False}
        if self._tls is not None:
            options["ssl_context"] = self._tls
        if not proxy:
            pools = urllib3.PoolManager(**options)
            pools.pool_classes_by_scheme = _pool_classes(self._policy, self._max_body_bytes)
            return pools
        proxied = urllib3.ProxyManager(proxy, **options, **_proxy_login(proxy))
        proxied.pool_classes_by_scheme = _pool_classes(OPERATOR, self._max_body_bytes)  # they connect to the proxy
        return proxied

    def _pools_for(self, url: str) -> urllib3.PoolManager:
        proxy = load_http_proxy() if self._has_proxy else ""
        if not proxy:
            return self._pools
        _, host, port = origin_of(url)
        if not self._policy.needs_proxy(host or "", port or 0):
            return self._pools
        with self._starting:
            if proxy not in self._proxied:
                self._proxied[proxy] = self._new_pools(proxy)
            return self._proxied[proxy]

    def _read(self, answer: urllib3.BaseHTTPResponse, url: str, cut: int | None) -> tuple[bytes, bool]:
        if cut == 0:
            answer.close()
            return b"", False
        limit = self._max_body_bytes if cut is None else cut
        content = answer.read(limit + 1)
        if len(content) <= limit:
            return content, True
        answer.close()  # the connection cannot be reused: the rest of the body is still on it
        if cut is None:
            raise HttpResponseTooLarge(f"The response of {shown(url)} has more than {limit} bytes.")
        return content[:limit], False


def _proxy_login(proxy: str) -> dict[str, Any]:
    parts = urlsplit(proxy)
    if parts.username is None:
        return {}
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"proxy_headers": urllib3.util.make_headers(proxy_basic_auth=login)}


def _checked(url: str, headers: Mapping[str, str]) -> dict[str, str]:
    """The headers to send, with the user and password of the URL as Basic credentials. Raises InvalidHttpRequest."""
    try:
        parts = urlsplit(url)
        is_http = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_http = False
    if not is_http:
        raise InvalidHttpRequest(f"{shown(url)!r} must look like https://partner.example.com/path.")
    wanted = dict(headers)
    if parts.username is not None and "authorization" not in map(str.lower, wanted):
        user, password = unquote(parts.username), unquote(parts.password or "")
        wanted |= urllib3.util.make_headers(basic_auth=f"{user}:{password}")
    return wanted


def _translate(error: Exception, url: str) -> NoReturn:
    cause = error.args[-1] if isinstance(error, urllib3.exceptions.ProtocolError) else error
    if isinstance(cause, (ValueError, http.client.InvalidURL, urllib3.exceptions.InvalidHeader)):
        raise InvalidHttpRequest(f"{shown(url)} cannot be requested: {cause}.") from error
    if isinstance(error, urllib3.exceptions.ReadTimeoutError):
        raise HttpInterrupted(f"{shown(url)} gave no whole response in time.") from error
    if isinstance(error, (_NotConnected, urllib3.exceptions.PoolError, urllib3.exceptions.ProxyError)):
        raise HttpUnreachable(f"{shown(url)} cannot be reached: {error}.") from error
    # http.client has no class of its own for more than 100 headers.
    if isinstance(cause, http.client.LineTooLong) or type(cause) is http.client.HTTPException:
        raise HttpResponseTooLarge(
            f"The response of {shown(url)} has too many or too long headers: {cause}."
        ) from error
    raise HttpInterrupted(f"{shown(url)} gave no whole response: {type(cause).__name__}: {cause}.") from error


class _NotConnected(urllib3.exceptions.HTTPError):
    """No connection was made: the name, the network, the host or its certificate is to blame."""


class _LimitedReader(io.RawIOBase):
    """Reads from a socket until a moment in time, and no more bytes than allowed."""

    def __init__(self, sock: socket.socket, max_bytes: int) -> None:
        self._sock = sock
        # SocketIO keeps the socket open until it is closed itself, as http.client expects of a response.
        self._raw = sock.makefile("rb", buffering=0)
        self._deadline = time.monotonic() + (sock.gettimeout() or TIMEOUT_S)
        self._bytes = 0
        self.max_bytes = max_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left_s)
        count = self._raw.readinto(buffer)
        self._bytes += count or 0
        if self._bytes > self.max_bytes:
            raise HttpResponseTooLarge(f"The response has more than {self.max_bytes} bytes of headers or chunk marks.")
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _LimitedResponse(http.client.HTTPResponse):
    """A response that ends in time, and whose headers end within their limit."""

    # A body in chunks of one byte takes six bytes for each.
    max_bytes = MAX_HEADER_BYTES + 8 * MAX_BODY_BYTES

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp.close()
        # The buffer reads ahead of the headers.
        self._reader = _LimitedReader(sock, MAX_HEADER_BYTES + io.DEFAULT_BUFFER_SIZE)
        self.fp = io.BufferedReader(self._reader)

    def begin(self) -> None:
        """Read the status line and the headers."""
        super().begin()
        self._reader.max_bytes = self.max_bytes


class _GuardedConnection(HTTPConnection):
    """A connection that checks the address it goes to."""

    policy = PUBLIC_ONLY
    response_class = _LimitedResponse

    def connect(self) -> None:
        """Connect, with TLS if the URL asks for it."""
        try:
            super().connect()
        except (OSError, urllib3.exceptions.HTTPError) as error:
            self.close()
            raise _NotConnected(str(error)) from error

    def _new_conn(self) -> socket.socket:
        timeout_s = self.timeout if isinstance(self.timeout, int | float) else CONNECT_TIMEOUT_S
        return connect(self.host, int(self.port or 80), timeout_s, self.policy)


class _GuardedTlsConnection(_GuardedConnection, HTTPSConnection):
    """The same over TLS."""


def _pool_classes(policy: AddressPolicy, max_body_bytes: int) -> dict[str, Any]:
    """The pools of one client: urllib3 takes their options as classes."""

    class Limited(_LimitedResponse):
        max_bytes = MAX_HEADER_BYTES + 8 * max_body_bytes

    options = {"policy": policy, "response_class": Limited}
    plain = type("GuardedConnection", (_GuardedConnection,), options)
    tls = type("GuardedTlsConnection", (_GuardedTlsConnection,), options)
    return {
        "http": type("GuardedPool", (HTTPConnectionPool,), {"ConnectionCls": plain}),
        "https": type("GuardedTlsPool", (HTTPSConnectionPool,), {"ConnectionCls": tls}),
    }
