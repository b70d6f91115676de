"""Accepts TLS connections: a client has the time of the headers to finish its handshake, and counts as a connection.

asyncio's own TLS server reports a connection after its handshake only, so that clients which never finish it would not
be limited.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from tape.base.telemetry.metrics import Metrics
from tape.base.telemetry.throttle import ThrottledLog
from tape.server.http.protocol import LINGER_S, HttpLimits
from tape.server.tls import ServerTls

# The first byte of a TLS handshake.
HANDSHAKE = b"\x16"
PLAINTEXT_TEXT = "This port uses TLS: write https:// in the address.\n"
PLAINTEXT_ANSWER = (
    "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n"
    f"content-length: {len(PLAINTEXT_TEXT)}\r\nconnection: close\r\n\r\n{PLAINTEXT_TEXT}"
).encode()
# Seconds to wait when the process has no file descriptors left.
ACCEPT_RETRY_S = 0.1

_log = ThrottledLog(logging.getLogger(__name__))


class TlsListener:
    """Takes connections from a socket, finishes their handshakes and hands them to a protocol."""

    def __init__(
        self,
        listening: socket.socket,
        tls: ServerTls,
        limits: HttpLimits,
        metrics: Metrics,
        new_protocol: Callable[[], asyncio.Protocol],
        count_connections: Callable[[], int],
    ) -> None:
        self._listening = listening
        self._tls = tls
        self._limits = limits
        self._metrics = metrics
        self._new_protocol = new_protocol
        self._count_connections = count_connections
        self._handshakes: set[asyncio.Task[None]] = set()
        listening.setblocking(False)
        self._accepting = asyncio.create_task(self._accept())

    def close(self) -> None:
        """Accept no more connections, and end handshakes in progress."""
        self._accepting.cancel()
        for handshake in self._handshakes:
            handshake.cancel()
        self._listening.close()

    async def wait_closed(self) -> None:
        """Wait until nothing of this listener runs."""
        await asyncio.gather(self._accepting, *self._handshakes, return_exceptions=True)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listening)
            except OSError as error:
                _log.warn("HTTP connection not accepted: %s", error)
                await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            if len(self._handshakes) + self._count_connections() >= self._limits.max_connections:
                self._report("limit", f"The server has {self._limits.max_connections} connections.")
                accepted.close()
                continue
            handshake = loop.create_task(self._begin(accepted))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)

    async def _begin(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        limit_s = self._limits.header_timeout_s
        ends_at = loop.time() + limit_s
        is_taken = False
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout_at(ends_at):
                first = await _peek(accepted)
            if first != HANDSHAKE:
                self._report("plaintext" if first else "closed", "The client does not use TLS.")
                if first:
                    await _answer_in_plain_text(accepted)
                return
            is_taken = True
            # The timeout of the event loop closes the connection itself; cancelling it would leave it open.
            await loop.connect_accepted_socket(
                self._new_protocol,
                accepted,
                ssl=self._tls.loaded.context,
                ssl_handshake_timeout=max(ends_at - loop.time(), 0.001),
                ssl_shutdown_timeout=LINGER_S,
            )
        except ssl.SSLError as error:
            self._report("handshake", error.reason or str(error))
        except (TimeoutError, ConnectionAbortedError):  # the second is how the event loop reports a late handshake
            self._report("timeout", f"The TLS handshake took more than {limit_s:g} s (http_header_timeout_s).")
        except OSError as error:
            self._report("closed", str(error))
        finally:
            if not is_taken:
                accepted.close()

    def _report(self, reason: str, text: str) -> None:
        self._metrics.tls_handshakes_failed.labels(reason).inc()
        _log.warn("TLS connection closed (%s): %s", reason, text)


async def _peek(accepted: socket.socket) -> bytes:
    """The first byte that the client sends, which stays in the socket; none if it disconnects."""
    loop = asyncio.get_running_loop()
    is_readable = asyncio.Event()
    loop.add_reader(accepted, is_readable.set)
    try:
        await is_readable.wait()
        return accepted.recv(1, socket.MSG_PEEK)
    finally:
        loop.remove_reader(accepted)


async def _answer_in_plain_text(accepted: socket.socket) -> None:
    """Say that this port uses TLS, and let the client read that before the connection is reset."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(LINGER_S):
        await loop.sock_sendall(accepted, PLAINTEXT_ANSWER)
        accepted.shutdown(socket.SHUT_WR)
        while await loop.sock_recv(accepted, 65_536):
            pass
