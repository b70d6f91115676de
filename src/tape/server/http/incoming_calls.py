"""A connection of the call protocol `tape/1`: calls arrive many in a message and are answered in any order.

Each call is served as one that arrives by gRPC: the same limits, checks and metrics. What one client can hold of the
server is bounded: beyond a number of calls in progress, of their bytes, or of unread replies, nothing more is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, NoReturn

from tape.base.keepalive import keep_alive
from tape.base.telemetry.throttle import ThrottledLog
from tape.errors import ServerStopping
from tape.model.principal import SYSTEM, current_principal
from tape.proto.call_frames import (
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
from tape.server.grpc.access import CERTIFICATE_KEY
from tape.server.grpc.methods import ERROR_CODE_KEY, METHODS, OrderedContext, RpcFailure, UnaryMethod
from tape.server.http.protocol import UpgradedProtocol

# Calls of one connection that may be in progress before it is read on.
MAX_CALLS_IN_PROGRESS = 1_024
# Bytes of a message with replies, unless a single one has more.
MESSAGE_BYTES = 1 << 20
# Characters of all metadata of a call, as gRPC has it (`MAX_METADATA_BYTES` of the server).
MAX_METADATA_CHARACTERS = 64 << 10
# Seconds between signs of life on a connection that is not read: its pings would have no answer.
SIGN_S = 3.0
# Seconds that a stopping server waits for clients to close connections without calls.
CLOSING_S = 1.0
# The event loop does not accept timers of more than 24 days on every platform.
MAX_TIMER_S = 20 * 86_400.0

_PONG = encode(ServerMessage())
_STREAMS = frozenset(method.name for method in METHODS if method.client_streaming or method.server_streaming)
_EXPIRED = RpcFailure("DEADLINE_EXCEEDED", "Deadline Exceeded")
_CANCELLED = RpcFailure("CANCELLED", "the client has cancelled the call.")
_TOO_MUCH_METADATA = RpcFailure(
    "RESOURCE_EXHAUSTED", f"the metadata has more than {MAX_METADATA_CHARACTERS} characters."
)

_log = ThrottledLog(logging.getLogger(__name__))

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class CallLimits:
    """What a client may take: bytes of a message, seconds until its first admitted call and between its bytes."""

    max_message_bytes: int
    first_call_s: float
    message_s: float


class CallContext(OrderedContext):
    """What a call says beside its request: its metadata, then that of its connection."""

    __slots__ = ("_certificate", "_metadata", "_order", "_peer")

    def __init__(self, metadata: Metadata, certificate: bytes | None, order: asyncio.Lock | None, peer: str) -> None:
        self._metadata = metadata
        self._peer = peer
        self._certificate = certificate
        self._order = order

    def invocation_metadata(self) -> Metadata:
        """Names and values."""
        return self._metadata

    def auth_context(self) -> Mapping[str, Any]:
        """The certificate that TLS has verified, as gRPC has it."""
        return {} if self._certificate is None else {CERTIFICATE_KEY: (self._certificate,)}

    def peer(self) -> str:
        """The address of the client, as gRPC writes it."""
        return self._peer

    async def send_initial_metadata(self, metadata: Any) -> NoReturn:
        """Only streams have initial metadata."""
        raise NotImplementedError

    def end_turn(self) -> None:
        """Let the next append be prepared."""
        order, self._order = self._order, None
        if order is not None:
            order.release()


class IncomingCalls(UpgradedProtocol):
    """The connection of one client. Calls run concurrently; appends are prepared in the order they were sent."""

    def __init__(
        self,
        methods: Mapping[str, UnaryMethod],
        limits: CallLimits,
        certificate: bytes | None,
        count: Callable[[IncomingCalls, bool], None],
    ) -> None:
        self._methods = methods
        self._limits = limits
        self._certificate = certificate
        self._count = count
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._reader = FrameReader(ClientMessage, limits.max_message_bytes)
        self._identity: Metadata = ()
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._bytes = 0
        self._appends = asyncio.Lock()
        self._expired: set[int] = set()
        self._replies: list[ReplyFrame] = []
        self._is_admitted = False
        self._is_stopping = False
        self._is_lost = False
        self._is_read_paused = False
        self._is_write_paused = False
        self._received_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._sign: asyncio.TimerHandle | None = None

    # ── the transport ────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        self._count(self, True)
        keep_alive(transport.get_extra_info("socket"))
        self._peer = _peer_of(transport.get_extra_info("peername"))
        self._timer = self._loop.call_later(self._limits.first_call_s, self._end_unknown)

    def data_received(self, data: bytes) -> None:
        self._received_at = self._loop.time()
        self._reader.feed(data)
        self._read()

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self._read()

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._read()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._set_timer(None)
        if self._sign is not None:
            self._sign.cancel()
        for task in self._calls.values():
            task.cancel()
        self._count(self, False)
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Accept no more calls, answer those in progress, and wait for the client to close."""
        self._is_stopping = True
        self.transport.write(encode(ServerMessage(closing=True)))
        self._set_timer(self._loop.call_later(CLOSING_S, self._close_idle))

    # ── calls ────────────────────────────────────────────────────────────────────────────────────

    @property
    def _is_full(self) -> bool:
        return (
            len(self._calls) >= MAX_CALLS_IN_PROGRESS
            or self._bytes >= self._limits.max_message_bytes
            or self._is_write_paused
        )

    def _read(self) -> None:
        """Accept the messages that have arrived, as many as there is capacity for."""
        try:
            while not self._is_full and (message := self._reader.next()) is not None:
                self._accept(message)
        except MalformedMessage as error:
            self._end(f"malformed message: {error}")
            return
        if self._is_full is not self._is_read_paused and not self.transport.is_closing():
            self._is_read_paused = not self._is_read_paused
            (self.transport.pause_reading if self._is_read_paused else self.transport.resume_reading)()
            if self._is_read_paused and self._sign is None:
                self._sign = self._loop.call_later(SIGN_S, self._show_life)
        if self._timer is None and not self._reader.is_empty:
            self._set_timer(self._loop.call_later(self._limits.message_s, self._end_slow))

    def _accept(self, message: ClientMessage) -> None:
        if message.token is not None:
            self._identity = (("authorization", f"Bearer {message.token}"),) if message.token else ()
        for call in message.calls:
            self._begin(call)
        for each in message.cancelled:
            if (task := self._calls.get(each)) is not None:
                self._loop.call_soon(task.cancel)  # a task that has not begun would not end its call
        if not message.calls and not message.cancelled and message.token is None:
            self.transport.write(_PONG)

    def _begin(self, call: CallFrame) -> None:
        method = self._methods.get(call.method)
        if call.id in self._calls:
            self._reply(_failed(call, RpcFailure("INVALID_ARGUMENT", f"the call {call.id} is in progress already.")))
        elif method is None:
            self._reply(_failed(call, _not_served(call.method)))
        elif call.metadata and sum([len(name) + len(value) for name, value in call.metadata]) > MAX_METADATA_CHARACTERS:
            self._reply(_failed(call, _TOO_MUCH_METADATA))
        elif self._is_stopping:
            self._reply(_failed(call, method.fail(ServerStopping("The server is stopping; nothing was done."))))
        else:
            self._bytes += len(call.body)
            # Not in the context of now: it may be that of another call, which left capacity for this one.
            work = self._serve(call, method)
            self._calls[call.id] = self._loop.create_task(work, context=self._context.copy())

    async def _serve(self, call: CallFrame, method: UnaryMethod) -> None:
        metadata = self._identity if call.metadata is None else (*call.metadata, *self._identity)
        context = CallContext(metadata, self._certificate, self._appends if method.is_append else None, self._peer)
        deadline = None
        if call.timeout_ms:
            deadline = self._loop.call_later(min(call.timeout_ms / 1_000, MAX_TIMER_S), self._expire, call.id)
        try:
            if method.is_append:
                reply = await self._append(call, method, context)
            else:
                reply = ReplyFrame(call.id, 0, await method.serve(call.body, context))
        except asyncio.CancelledError:
            reply = _failed(call, _EXPIRED if call.id in self._expired else _CANCELLED)
        except Exception as error:
            reply = _failed(call, method.fail(error))
        if deadline is not None:
            deadline.cancel()
            self._expired.discard(call.id)
        self._finish(call, reply)

    async def _append(self, call: CallFrame, method: UnaryMethod, context: CallContext) -> ReplyFrame:
        """Serve an append in its turn, which ends when it is prepared, and at the latest with the call."""
        await self._appends.acquire()
        try:
            return ReplyFrame(call.id, 0, await method.serve(call.body, context))
        finally:
            context.end_turn()

    def _expire(self, call_id: int) -> None:
        self._expired.add(call_id)
        self._calls[call_id].cancel()

    def _finish(self, call: CallFrame, reply: ReplyFrame) -> None:
        del self._calls[call.id]
        self._bytes -= len(call.body)
        if self._is_lost:
            return
        if not self._is_admitted and current_principal() is not SYSTEM:
            self._is_admitted = True
            if not self._is_stopping:
                self._set_timer(None)
        self._reply(reply)
        if self._is_read_paused:
            self._read()

    # ── replies ──────────────────────────────────────────────────────────────────────────────────

    def _reply(self, reply: ReplyFrame) -> None:
        """Send a reply together with the others of this turn of the event loop."""
        if not self._replies:
            self._loop.call_soon(self._flush)
        self._replies.append(reply)

    def _flush(self) -> None:
        replies, self._replies = self._replies, []
        if self._is_lost:
            return
        self.transport.write(encode_parts(replies, ServerMessage, MESSAGE_BYTES))

    def _show_life(self) -> None:
        self._sign = None
        if self._is_read_paused:
            self._sign = self._loop.call_later(SIGN_S, self._show_life)
            if not self._is_write_paused:
                self.transport.write(_PONG)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    def _set_timer(self, timer: asyncio.TimerHandle | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = timer

    def _end_unknown(self) -> None:
        """Close a connection on which no caller has proved who it is."""
        self._timer = None
        if self._calls:
            self._set_timer(self._loop.call_later(self._limits.first_call_s, self._end_unknown))
        else:
            self._end(f"no call was admitted for {self._limits.first_call_s:g} s (http_header_timeout_s)")

    def _end_slow(self) -> None:
        """Close a connection that has stopped in the middle of a message."""
        self._timer = None
        if self._reader.is_empty:
            return
        late_s = self._loop.time() - self._received_at - self._limits.message_s
        if self._is_read_paused or late_s < 0:
            self._set_timer(self._loop.call_later(max(-late_s, 0.1), self._end_slow))
        else:
            limit_s = self._limits.message_s
            self._end(f"no byte of a message arrived for {limit_s:g} s (http_body_timeout_s)")

    def _close_idle(self) -> None:
        """Close the connection of a stopping server, if no call is in progress."""
        self._timer = None
        if self._calls or self._replies:
            self._set_timer(self._loop.call_later(CLOSING_S, self._close_idle))
        else:
            self.transport.close()

    def _end(self, reason: str) -> None:
        _log.warn("call connection closed: %s", reason)
        self.transport.abort()


def _peer_of(address: Any) -> str:
    """The address of a socket's other end, as gRPC writes it; a Unix socket has none."""
    if not isinstance(address, tuple):
        return "unix:"
    host, port = address[:2]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


def _not_served(name: str) -> RpcFailure:
    if name in _STREAMS:
        return RpcFailure("UNIMPLEMENTED", f"{name} is a stream; call it by gRPC.")
    return RpcFailure("UNIMPLEMENTED", "Method not found!")


def _failed(call: CallFrame, failure: RpcFailure) -> ReplyFrame:
    trailers = dict(failure.trailers)
    code = trailers.pop(ERROR_CODE_KEY, "")
    text = failure.text.encode(errors="replace")
    return ReplyFrame(call.id, STATUS_NUMBERS[failure.status], text, code, list(trailers.items()) or None)
