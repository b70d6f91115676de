"""uvicorn's HTTP protocol, with limits before authentication, and with ways for a stream to write to its socket itself
and for a request to upgrade the connection to another protocol.

An ASGI `send` costs about 20 µs and copies its data. A stream that fans out writes shared bytes to the
transport directly; the protocol notifies it when the socket is full or closed.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tape.base.telemetry.throttle import ThrottledLog

# Key of the connection in the ASGI scope.
KEY = "tape.connection"
# Seconds for which a refused client may go on sending, so that it can read the response. What it sends is dropped.
LINGER_S = 1.0
# Bytes that a connection holds for a client that does not read before its streams are paused.
WRITE_BUFFER_BYTES = 64 << 10
# Bytes of a request line beside the URL: method, version, line ends.
_REQUEST_LINE_BYTES = 128

_log = ThrottledLog(logging.getLogger(__name__))


class HttpLimits(NamedTuple):
    """What a client may send before it is authenticated. The settings `http_…` have the same names."""

    max_header_bytes: int = 64 << 10
    max_url_bytes: int = 16 << 10
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    max_connections: int = 2_000


class StreamWriter(Protocol):
    """A stream that writes to a connection."""

    def pause(self) -> None:
        """The socket is full."""

    def resume(self) -> None:
        """The socket accepts data again."""

    def gone(self) -> None:
        """The client disconnected."""


class UpgradedProtocol(asyncio.Protocol, ABC):
    """What a connection is upgraded to. It counts as a connection until it is lost."""

    transport: asyncio.Transport
    _connections: set[Any]

    def upgraded(self, transport: asyncio.Transport, connections: set[Any]) -> None:
        """Begin on a transport, as one of the connections of a server."""
        self._connections = connections
        connections.add(self)
        self.transport = transport
        self.connection_made(transport)
        transport.set_protocol(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)

    @abstractmethod
    def shutdown(self) -> None:
        """The server stops: end the connection when nothing is in progress."""


class HttpConnection(HttpToolsProtocol):
    """The connection of one client."""

    limits = HttpLimits()
    writer: StreamWriter | None = None
    is_refused = False

    # The verified certificate of the client in DER; None without one.
    certificate: bytes | None = None

    _timer: asyncio.TimerHandle | None = None
    # Whether the next byte belongs to a request line or header rather than to a body.
    _is_in_head = True
    _has_begun = False
    _completed = 0
    _header_bytes = 0
    # Bytes since the parser last reported a part of a body or the end of the headers, and whether it just did.
    _unreported_bytes = 0
    _has_reported = False
    _body_at = 0.0
    # What a client sent after a request with the header Upgrade, without waiting for the answer.
    _after_upgrade = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        if (tls := transport.get_extra_info("ssl_object")) is not None:
            self.certificate = tls.getpeercert(binary_form=True)
            # As without TLS; the event loop would let a slow client leave 512 KiB in memory.
            transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        if len(self.connections) > self.limits.max_connections:
            self._refuse(503, f"The server has {self.limits.max_connections} connections (http_max_connections).")
        else:
            self._await_head()

    def data_received(self, data: bytes) -> None:
        if self.is_refused:
            return
        self._unset_keepalive_if_required()
        was_in_head, completed = self._is_in_head, self._completed
        self._has_reported = False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # The request is served over HTTP/1.1, unless its handler calls `upgrade`.
            self._after_upgrade = data[upgrade.args[0] :]
        except httptools.HttpParserError:
            self._refuse(400, "Invalid HTTP request received.")
        self._watch(len(data), is_same_head=was_in_head and self._is_in_head and completed == self._completed)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._has_begun = True
        self._header_bytes = 0
        self.scope[KEY] = self  # type: ignore[literal-required]  # ASGI scopes may carry more

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > self.limits.max_url_bytes:
            self._stop_parsing(414, f"The URL has more than {self.limits.max_url_bytes} bytes (http_max_url_bytes).")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value) + 4
        if self._header_bytes > self.limits.max_header_bytes:
            self._stop_parsing(431, self._too_many_header_bytes)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._cancel_timer()
        self._is_in_head = self._has_begun = False
        self._report()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._report()
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._cancel_timer()
        self._is_in_head = True
        self._report()
        self._completed += 1
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.writer is not None:
            self.writer.pause()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.writer is not None:
            self.writer.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        super().connection_lost(exc)
        writer, self.writer = self.writer, None
        if writer is not None:
            writer.gone()

    def upgrade(self, head: bytes, protocol: UpgradedProtocol) -> None:
        """Answer the open request with this head, and hand the connection over, unless it is closed already."""
        if self.is_refused or self.transport.is_closing():
            return
        self._cancel_timer()
        self._unset_keepalive_if_required()
        self.cycle.disconnected = True  # what else its handler sends goes nowhere
        self.transport.write(head)
        self.connections.discard(self)
        self.flow.resume_reading()
        protocol.upgraded(self.transport, self.connections)
        if self._after_upgrade:
            protocol.data_received(self._after_upgrade)

    @property
    def _too_many_header_bytes(self) -> str:
        return f"The headers have more than {self.limits.max_header_bytes} bytes (http_max_header_bytes)."

    def _report(self) -> None:
        self._unreported_bytes = 0
        self._has_reported = True
        self._body_at = self.loop.time()

    def _watch(self, received: int, *, is_same_head: bool) -> None:
        """Bound what the parser holds back and how long the client may take for the rest of its request."""
        if self.is_refused or self.transport.is_closing():
            return
        if is_same_head or not (self._is_in_head or self._has_reported):
            # The parser keeps an unfinished header or trailer in memory and reports it only when it is whole.
            self._unreported_bytes += received
            allowed = self.limits.max_header_bytes + self.limits.max_url_bytes + _REQUEST_LINE_BYTES
            if self._unreported_bytes > allowed:
                self._refuse(431, self._too_many_header_bytes)
                return
        if not self._is_in_head:
            if self._timer is None:
                self._await_body()
        elif self._timer is None and (is_same_head or self._has_begun):
            self._await_head()

    def _await_head(self) -> None:
        self._timer = self.loop.call_later(self.limits.header_timeout_s, self._end_slow_head)

    def _end_slow_head(self) -> None:
        limit = self.limits.header_timeout_s
        self._refuse(408, f"The headers took more than {limit:g} s (http_header_timeout_s).")

    def _await_body(self) -> None:
        at = self._body_at + self.limits.body_timeout_s
        self._timer = self.loop.call_at(at, self._end_slow_body)

    def _end_slow_body(self) -> None:
        if self.flow.read_paused:  # the server has not taken yet what the client sent
            self._body_at = self.loop.time()
        if self.loop.time() < self._body_at + self.limits.body_timeout_s:
            self._await_body()
            return
        if self.cycle.response_complete:
            self.transport.close()
            return
        limit = self.limits.body_timeout_s
        self._refuse(408, f"No byte of the body arrived for {limit:g} s (http_body_timeout_s).")

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_parsing(self, status: int, text: str) -> None:
        """Refuse the connection from within a callback of the parser."""
        self._refuse(status, text)
        raise ValueError(text)

    def _refuse(self, status: int, text: str) -> None:
        """Answer with an error, drop what else arrives, and close the connection."""
        if self.is_refused:
            return
        self.is_refused = True
        self._cancel_timer()
        self._unset_keepalive_if_required()
        _log.warn("HTTP connection closed with status %d: %s", status, text)
        if not self._abandon_request():
            self.transport.abort()
            return
        retry = "retry-after: 1\r\n" if status == 503 else ""
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: text/plain; charset=utf-8\r\n"
            f"content-length: {len(text)}\r\n{retry}connection: close\r\n\r\n"
        )
        self.transport.write(f"{head}{text}".encode())
        if len(self.connections) > 2 * self.limits.max_connections:
            self.transport.close()
            return
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._timer = self.loop.call_later(LINGER_S, self.transport.abort)
        else:  # TLS
            self._timer = self.loop.call_later(LINGER_S, self.transport.close)

    def _abandon_request(self) -> bool:
        """Notify the handler of an open request that the client is gone. False if a response has begun already."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:  # type: ignore[redundant-expr]  # None before the first request
            return True
        if cycle.response_started or self.pipeline:
            return False
        cycle.disconnected = True
        cycle.message_event.set()
        return True


def limited_connection(limits: HttpLimits) -> type[HttpConnection]:
    """The protocol class with other limits."""
    return type("LimitedHttpConnection", (HttpConnection,), {"limits": limits})
