"""A connection of the call protocol `tape/1`: the calls of one turn of the event loop leave in one message."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import NamedTuple

from tape.base.keepalive import keep_alive
from tape.base.url_mask import mask_urls
from tape.client.failures import CallFailure, translate
from tape.errors import AnyTapeError, ServerUnreachable
from tape.proto.call_frames import (
    JOURNAL_HEADER,
    MAX_CALLS,
    PATH,
    PROTOCOL,
    STATUS_NAMES,
    STATUS_NUMBERS,
    CallFrame,
    ClientMessage,
    FrameReader,
    MalformedMessage,
    ReplyFrame,
    ServerMessage,
    encode,
    encode_parts,
)

Metadata = tuple[tuple[str, str], ...]

# While calls wait, a ping goes this many seconds after the last byte, and the connection is lost if nothing arrives for
# as many as the second says. gRPC has the same (`OPTIONS` of the channel). After an event loop was blocked, timers may
# run before what has arrived is read: the third is the time for that.
PING_S, PONG_S, READ_S = 6.0, 3.0, 0.1
# Bytes that the answer to the upgrade may have.
MAX_HEAD_BYTES = 16 << 10
# A larger request goes by gRPC, so that it does not hold up the calls behind it.
MAX_CALL_BYTES = 2 << 20
# What a call has beside its request, for the limit of a message.
CALL_OVERHEAD_BYTES = 128 << 10

_PING = encode(ClientMessage())


class _Waiting(NamedTuple):
    """A call without an answer yet."""

    name: str
    future: asyncio.Future[bytes]


class OutgoingCalls(asyncio.Protocol):
    """Open after `upgraded`, until `on_closed` is called, once: then no more calls can be made.

    A request of more than `max_call_bytes` has to go another way.
    """

    def __init__(self, url: str, max_message_bytes: int, on_closed: Callable[[], None]) -> None:
        self.max_call_bytes = min(MAX_CALL_BYTES, max_message_bytes - CALL_OVERHEAD_BYTES)
        self._max_message_bytes = max_message_bytes
        self._url = url
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self.upgraded: asyncio.Future[None] = self._loop.create_future()
        self.lost = asyncio.Event()
        self._head: bytearray | None = bytearray()
        self._reader = FrameReader(ServerMessage)
        self._transport: asyncio.Transport | None = None
        self._token: str | None = None
        self._is_token_sent = True
        self._last_id = 0
        self._waiting: dict[int, _Waiting] = {}
        self._calls: list[CallFrame] = []
        self._cancelled: list[int] = []
        self._is_write_paused = False
        self._is_closing = False
        self._received_at = 0.0
        self._ping: asyncio.TimerHandle | None = None

    # ── calls ────────────────────────────────────────────────────────────────────────────────────

    async def call(
        self,
        name: str,
        body: bytes,
        metadata: Metadata = (),
        token: str = "",
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> bytes:
        """The response to a request; raises the error that the server reported."""
        if self._is_closing:
            raise self._lost("the connection is closed")
        self._last_id = call_id = self._last_id + 1
        future: asyncio.Future[bytes] = self._loop.create_future()
        if token != (self._token or ""):
            self._token, self._is_token_sent = token, False
        if not self._calls and not self._cancelled:
            self._loop.call_soon(self._flush)
        timeout_ms = 0 if timeout is None else max(round(timeout * 1_000), 1)
        self._calls.append(CallFrame(call_id, name, body, timeout_ms, list(metadata) if metadata else None))
        self._waiting[call_id] = _Waiting(name, future)
        if self._ping is None:
            self._ping = self._loop.call_later(PING_S, self._check_alive)
        deadline = None if timeout is None else self._loop.call_later(timeout, self._expire, call_id)
        try:
            return await future
        except asyncio.CancelledError:
            self._cancel(call_id)
            raise
        finally:
            if deadline is not None:
                deadline.cancel()

    @property
    def is_open(self) -> bool:
        """Whether calls can be made."""
        return not self._is_closing

    def close(self) -> None:
        """Disconnect. Calls in progress fail; `lost` is set when it is done."""
        if self._transport is not None:
            self._transport.abort()

    def _expire(self, call_id: int) -> None:
        self._settle(ReplyFrame(call_id, STATUS_NUMBERS["DEADLINE_EXCEEDED"], b"Deadline Exceeded"))
        self._cancel(call_id)

    def _cancel(self, call_id: int) -> None:
        self._waiting.pop(call_id, None)
        if not self._is_closing:
            if not self._calls and not self._cancelled:
                self._loop.call_soon(self._flush)
            self._cancelled.append(call_id)

    def _flush(self) -> None:
        """Send the calls and cancellations of this turn of the event loop."""
        if self._is_write_paused or self._transport is None or self._transport.is_closing():
            return
        calls, cancelled = self._calls, self._cancelled
        self._calls, self._cancelled = [], []
        if cancelled:
            calls = [call for call in calls if call.id in self._waiting]
        data = b""
        if not self._is_token_sent:
            self._is_token_sent = True
            data = encode(ClientMessage(token=self._token))
        for start in range(0, len(calls), MAX_CALLS):
            data += encode_parts(calls[start : start + MAX_CALLS], ClientMessage, self._max_message_bytes)
        for start in range(0, len(cancelled), MAX_CALLS):
            data += encode(ClientMessage(cancelled=cancelled[start : start + MAX_CALLS]))
        self._transport.write(data)

    # ── replies ──────────────────────────────────────────────────────────────────────────────────

    def data_received(self, data: bytes) -> None:
        self._received_at = self._loop.time()
        if self._head is not None:
            self._head += data
            data = self._take_head()
        self._reader.feed(data)
        try:
            while (message := self._reader.next()) is not None:
                for reply in message.replies:
                    self._settle(reply)
                if message.closing:
                    self._end()
        except MalformedMessage:
            self.close()
        if self._is_closing and not self._waiting:
            self.close()

    def _settle(self, reply: ReplyFrame) -> None:
        waiting = self._waiting.pop(reply.id, None)
        if waiting is None or waiting.future.done():
            return
        if reply.status == 0:
            waiting.future.set_result(reply.body)
        else:
            waiting.future.set_exception(self._error_of(reply, waiting.name))

    def _error_of(self, reply: ReplyFrame, name: str) -> AnyTapeError:
        status = STATUS_NAMES[reply.status] if 0 < reply.status < len(STATUS_NAMES) else "UNKNOWN"
        text = reply.body.decode(errors="replace")
        return translate(CallFailure(status, text, reply.error_code, dict(reply.trailers or ())), self._url, name)

    # ── the transport ────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # a stream has this one
        self._transport = transport
        keep_alive(transport.get_extra_info("socket"))

    def ask_upgrade(self, host: str, journal_id: str) -> None:
        """Ask for the upgrade; `upgraded` is the answer."""
        assert self._transport is not None
        head = (
            f"GET {PATH} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n"
            f"{JOURNAL_HEADER}: {journal_id}\r\n\r\n"
        )
        self._transport.write(head.encode())

    def _take_head(self) -> bytes:
        """The bytes after the answer to the upgrade; none before it is whole."""
        assert self._head is not None
        head, end, rest = bytes(self._head).partition(b"\r\n\r\n")
        if not end and len(head) <= MAX_HEAD_BYTES:
            return b""
        self._head = None
        status = head.partition(b"\r\n")[0].decode("latin-1")
        if status.startswith("HTTP/1.1 101 ") and f"upgrade: {PROTOCOL}".encode() in head.lower():
            if not self.upgraded.done():
                self.upgraded.set_result(None)
            return rest
        if not self.upgraded.done():
            self.upgraded.set_exception(
                ServerUnreachable(f"{mask_urls(self._url)} refused {PROTOCOL} ({status[:80]}).")
            )
        self.close()
        return b""

    def pause_writing(self) -> None:
        self._is_write_paused = True

    def resume_writing(self) -> None:
        self._is_write_paused = False
        if self._calls or self._cancelled:
            self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self.lost.set()
        if self._ping is not None:
            self._ping.cancel()
        lost = self._lost(str(exc or "connection closed"))
        if not self.upgraded.done():
            self.upgraded.set_exception(lost)
            self.upgraded.exception()  # it may have no reader: the attempt has timed out
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            if not each.future.done():
                each.future.set_exception(self._lost(str(exc or "connection closed")))

    def _end(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._on_closed()

    def _lost(self, reason: str) -> AnyTapeError:
        return translate(CallFailure("UNAVAILABLE", reason), self._url, "")

    def _check_alive(self) -> None:
        self._ping = None
        if not self._waiting or self._transport is None:
            return
        idle_s = self._loop.time() - self._received_at
        if idle_s < PING_S:
            self._ping = self._loop.call_later(PING_S - idle_s, self._check_alive)
            return
        self._transport.write(_PING)
        self._ping = self._loop.call_later(PONG_S, self._check_pong, self._received_at)

    def _check_pong(self, received_at: float, is_last: bool = False) -> None:
        self._ping = None
        if self._received_at != received_at:
            self._check_alive()
        elif is_last:
            self.close()
        else:
            self._ping = self._loop.call_later(READ_S, self._check_pong, received_at, True)


async def open_connection(
    url: str,
    address: tuple[str, int],
    context: ssl.SSLContext | None,
    journal_id: str,
    max_message_bytes: int,
    on_closed: Callable[[], None],
) -> OutgoingCalls:
    """A connection that was upgraded. Nothing secret has been sent yet."""
    host, port = address
    loop = asyncio.get_running_loop()
    transport, connection = await loop.create_connection(
        lambda: OutgoingCalls(url, max_message_bytes, on_closed), host, port, ssl=context
    )
    try:
        connection.ask_upgrade(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", journal_id)
        await connection.upgraded
    except BaseException:
        transport.abort()
        raise
    return connection
