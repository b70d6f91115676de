"""POSTs that arrive or say why not: what WebhookSink and AIPlexSink share."""

from __future__ import annotations

import email.utils
import random
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError, NewConnectionError

from tape.base.addresses import connect
from tape.errors import InvalidInput, RefusedAddress, SinkClosed, SinkRejected, SinkUnavailable

# Statuses below 500 that ask to come again.
COME_AGAIN = frozenset({408, 425, 429})
MAX_BACKOFF_S = 30.0
MAX_SHOWN = 200
MAX_ANSWER = 1 << 16


class HttpTarget:
    """A URL that bodies are POSTed to, on connections that are kept. Safe to use from several threads.

    408, 425, 429, 5xx and network errors are tried `max_retries` times more, with a pause that doubles and varies, or
    as long as `Retry-After` asks for; then they are SinkUnavailable. Other statuses than 2xx are SinkRejected.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        max_retries: int,
        initial_backoff_s: float,
        timeout_s: float,
        allow_private: bool,
        connections: int = 1,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInput(f"url {url!r} must look like https://partner.example.com/path.")
        if parts.username or parts.password:
            raise InvalidInput("url has credentials in it; send them as an Authorization header instead.")
        for name, value in headers.items():
            if not f"{name}{value}".isprintable() or not f"{name}{value}".isascii() or " " in name:
                raise InvalidInput(f"The header {name!r} cannot be sent; it must be one printable line of ASCII.")
        if max_retries < 0 or initial_backoff_s <= 0 or timeout_s <= 0:
            raise InvalidInput(
                f"max_retries {max_retries!r} must be 0 or more, initial_backoff_s {initial_backoff_s!r} and"
                f" timeout_s {timeout_s!r} more than 0."
            )
        self.url = url
        self.retries = 0
        self._headers = dict(headers)
        self._max_retries = max_retries
        self._first_pause = initial_backoff_s
        self._closed = threading.Event()
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._pool = _pool(parts.scheme, parts.hostname, parts.port, timeout_s, connections, allow_private)

    def post(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Return when the target has answered 2xx."""
        pause = self._first_pause
        for attempt in range(self._max_retries + 1):
            if self._closed.is_set():
                raise SinkClosed(f"The sink to {self.url} was closed.")
            failure = self._try(body, headers)
            if failure is None:
                return
            asked = failure.retry_after_s or 0.0
            if attempt == self._max_retries or asked > MAX_BACKOFF_S:
                raise failure  # whoever called us waits longer than we would
            self.retries += 1
            self._closed.wait(max(asked, pause * random.uniform(0.5, 1.0)))  # noqa: S311
            pause = min(pause * 2, MAX_BACKOFF_S)

    def close(self) -> None:
        """Close connections; a pause between tries ends at once."""
        self._closed.set()
        self._pool.close()

    def _try(self, body: bytes, headers: Mapping[str, str]) -> SinkUnavailable | None:
        try:
            answer = self._pool.urlopen(
                "POST",
                self._path,
                body=body,
                headers={**self._headers, **headers},
                retries=False,
                redirect=False,
                preload_content=False,
            )
            shown = answer.read(MAX_ANSWER)[:MAX_SHOWN].decode(errors="replace")
            if not answer.closed:  # it says more than anybody wants to know
                answer.close()
            answer.release_conn()
        except RefusedAddress:
            raise
        except (HTTPError, OSError) as error:
            return SinkUnavailable(f"{self.url} cannot be reached: {_reason(error)}.")
        if 200 <= answer.status < 300:
            return None
        told = f"{self.url} answered {answer.status} {answer.reason or ''}: {shown}"
        if answer.status >= 500 or answer.status in COME_AGAIN:
            return SinkUnavailable(told, retry_after_s=retry_after(answer.headers.get("Retry-After")))
        raise SinkRejected(told)


def retry_after(header: str | None) -> float | None:
    """How many seconds a Retry-After header asks for, as a number or as a date; None if it says nothing sensible."""
    if header is None:
        return None
    text = header.strip()
    if text.isdecimal():
        return float(text)
    try:
        moment = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(moment.timestamp() - time.time(), 0.0)


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _pool(
    scheme: str, host: str, port: int | None, timeout_s: float, connections: int, allow_private: bool
) -> HTTPConnectionPool:
    """Connections that check where they go; proxies of the environment are not used."""

    class Checked(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            return _open(self, allow_private)

    class CheckedTls(HTTPSConnection):
        def _new_conn(self) -> socket.socket:
            return _open(self, allow_private)

    options: dict[str, Any] = {
        "timeout": urllib3.Timeout(total=timeout_s),
        "maxsize": connections,
        "block": True,
        "retries": False,
    }
    pool: HTTPConnectionPool
    if scheme == "https":
        pool = HTTPSConnectionPool(host, port, cert_reqs="CERT_REQUIRED", **options)
        pool.ConnectionCls = CheckedTls
    else:
        pool = HTTPConnectionPool(host, port, **options)
        pool.ConnectionCls = Checked
    return pool


def _open(connection: HTTPConnection, allow_private: bool) -> socket.socket:
    seconds = connection.timeout if isinstance(connection.timeout, int | float) else None
    try:
        return connect(connection.host, connection.port or 80, seconds, allow_private=allow_private)
    except OSError as error:
        raise NewConnectionError(connection, f"{error}") from error
