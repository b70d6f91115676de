"""The one client for outgoing HTTP requests: an address policy, time and size limits, typed errors.

No other module opens HTTP connections. Exceptions are libraries that bring their own transport: google-auth and
google-cloud-pubsub, obstore, deltalake, the OpenTelemetry exporters, and a client that a user gives to HttpConnector.
"""

from __future__ import annotations

import asyncio
import email.utils
import os
import ssl
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit, urlunsplit

import msgspec

from tape.base.addresses import PUBLIC_ONLY, AddressPolicy
from tape.errors import InvalidHttpRequest

if TYPE_CHECKING:
    from tape.base.http_connections import Connections

CONNECT_TIMEOUT_S = 10.0
TIMEOUT_S = 30.0
MAX_BODY_BYTES = 1 << 20
MAX_HEADER_BYTES = 64 << 10
# Statuses below 500 that ask for the same request later.
RETRYABLE_STATUSES = frozenset({408, 425, 429})

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# Headers that belong to the first host and must not reach another one.
_CREDENTIALS = frozenset({"authorization", "cookie", "proxy-authorization"})


@dataclass(frozen=True, slots=True)
class Response:
    """A response whose body has been read. Header names are in lower case; `is_whole` is False for a cut body."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes
    is_whole: bool = True

    @property
    def is_success(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300

    @property
    def is_retryable(self) -> bool:
        """Whether the same request may succeed later: 408, 425, 429 and 5xx."""
        return self.status >= 500 or self.status in RETRYABLE_STATUSES

    @property
    def retry_after_s(self) -> float | None:
        """The seconds that `Retry-After` asks for, given as a number or as a date; None without a usable value."""
        return parse_retry_after(self.headers.get("retry-after"))

    @property
    def text(self) -> str:
        """The body as UTF-8; bytes that are not are replaced."""
        return self.body.decode(errors="replace")

    def json(self) -> Any:
        """The body as JSON. Raises msgspec.DecodeError."""
        return msgspec.json.decode(self.body)


class HttpClient:
    """Sends requests on connections that it keeps and reuses. Safe to share between threads.

    Every connection is checked against the address policy after the name was resolved. `timeout_s` limits a whole
    request from the first byte of the connection to the last byte of the body, `connect_timeout_s` its connection.
    A body over `max_body_bytes` and headers over 64 KiB or 100 lines are HttpResponseTooLarge. Redirects are followed
    only up to `max_redirects`, each with the same checks. Certificates are verified, with `tls` instead of the
    authorities of the system if it is given. The proxy TAPE_HTTP_PROXY is used if `has_proxy`, by default with the
    policy PUBLIC_ONLY; other proxies of the environment are not. Nothing is retried here: the caller knows what may be
    repeated.
    """

    def __init__(
        self,
        policy: AddressPolicy = PUBLIC_ONLY,
        *,
        timeout_s: float = TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        max_body_bytes: int = MAX_BODY_BYTES,
        max_redirects: int = 0,
        connections: int = 8,
        has_proxy: bool | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._options: dict[str, Any] = {
            "policy": policy,
            "connect_timeout_s": connect_timeout_s,
            "max_body_bytes": max_body_bytes,
            "connections": connections,
            "has_proxy": not policy.any_address if has_proxy is None else has_proxy,
            "tls": tls,
        }
        self._timeout_s = timeout_s
        self._max_redirects = max_redirects
        self._max_threads = connections
        self._start()

    def _start(self) -> None:
        """Begin with no connections and no threads; a forked process must not use those of its parent."""
        self._pid = os.getpid()
        self._connections: Connections | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._starting = threading.Lock()

    def _opened(self) -> Connections:
        """The connections. urllib3 is loaded by the first request: many processes have a client and send none."""
        with self._starting:
            if self._connections is None:
                from tape.base.http_connections import Connections

                self._connections = Connections(**self._options)
            return self._connections

    def request(
        self,
        method: str,
        url: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        cut: int | None = None,
    ) -> Response:
        """Send a request and read its response. With `cut` a longer body is cut to that many bytes;
        with 0 it is not waited for.

        Raises HttpUnreachable, HttpInterrupted, HttpResponseTooLarge, AddressNotAllowed or InvalidHttpRequest.
        """
        if self._pid != os.getpid():
            self._start()
        deadline = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        connections = self._opened()
        wanted = dict(headers or {})
        for _ in range(self._max_redirects):
            response = connections.send(method, url, body, wanted, deadline, cut)
            location = response.headers.get("location")
            if response.status not in _REDIRECTS or not location:
                return response
            target = urljoin(url, location)
            if origin_of(target) != origin_of(url):
                wanted = {name: value for name, value in wanted.items() if name.lower() not in _CREDENTIALS}
            if urlsplit(url).scheme == "https" and urlsplit(target).scheme != "https":
                raise InvalidHttpRequest(f"{shown(url)} redirects from https to {shown(target)}.")
            if response.status == 303 or (response.status in (301, 302) and method == "POST"):
                method, body = "GET", None
            url = target
        return connections.send(method, url, body, wanted, deadline, cut)

    async def send(self, method: str, url: str, **options: Any) -> Response:
        """Do the same as `request` without blocking the event loop."""
        if self._pid != os.getpid():
            self._start()
        with self._starting:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._max_threads, thread_name_prefix="tape-http")
        call = partial(self.request, method, url, **options)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def close(self) -> None:
        """Close the connections."""
        if self._connections is not None:
            self._connections.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False)


def parse_retry_after(header: str | None) -> float | None:
    """The seconds that a `Retry-After` header asks for, given as a number or as a date; None for anything else."""
    text = (header or "").strip()
    if text.isdecimal() and text.isascii():
        return float(text)
    try:
        moment = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(moment.timestamp() - time.time(), 0.0)


def shown(url: str) -> str:
    """A URL as error texts show it: without user, password, query and fragment, which may hold secrets."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return repr(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def origin_of(url: str) -> tuple[str, str | None, int | None]:
    """Scheme, host and port of a URL."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
