"""Calls of a client to the engine in its own process, served by the same methods as those of gRPC and of frames.

The first call opens the store. A call crosses from the client's event loop to that of the engine and back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from google.protobuf.message import Message

from tape.client.channel import POSITION_KEY, Channel, Metadata, StreamCall
from tape.client.failures import CallFailure, translate
from tape.client.rpcs import BidiStreamRpc, Rpc, ServerStreamRpc, UnaryRpc
from tape.embedded.engine import EmbeddedEngine, acquire, release
from tape.errors import AnyTapeError, ClientClosed
from tape.server.grpc.methods import ERROR_CODE_KEY, OrderedContext, RpcFailure, StreamMethod, to_bytes

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)

# Replies of a stream that wait for the client before the engine waits too.
WINDOW = 64

_EXPIRED = RpcFailure("DEADLINE_EXCEEDED", "Deadline Exceeded")


class CallFailed(Exception):
    """How a call failed, on its way from the engine to the client."""

    def __init__(self, failure: RpcFailure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class EmbeddedContext(OrderedContext):
    """What a call says beside its request."""

    __slots__ = ("_metadata", "_on_position", "_order")

    def __init__(
        self,
        metadata: Metadata,
        order: asyncio.Lock | None = None,
        on_position: Callable[[int], None] | None = None,
    ) -> None:
        self._metadata = metadata
        self._order = order
        self._on_position = on_position

    def invocation_metadata(self) -> Metadata:
        """Names and values."""
        return self._metadata

    def auth_context(self) -> Mapping[str, Any]:
        """Nothing: a call within a process needs no certificate."""
        return {}

    def peer(self) -> str:
        """The caller's host, as gRPC names it: this one."""
        return "ipv4:127.0.0.1:0"

    async def send_initial_metadata(self, metadata: Any) -> None:
        """Hand the client the position at which its subscription begins."""
        position = dict(metadata).get(POSITION_KEY)
        if position is not None and self._on_position is not None:
            self._on_position(int(position))

    def end_turn(self) -> None:
        """Let the next append of this client be prepared."""
        order, self._order = self._order, None
        if order is not None:
            order.release()


class EmbeddedChannel(Channel):
    """The channel of a `sqlite:` URL. It sends no credentials: the process owns the store."""

    def __init__(self, url: str, lease_owner: str = "") -> None:
        super().__init__(url, lease_owner)
        self._connection = _Connection(url)

    async def call(
        self,
        rpc: UnaryRpc[Request, Response],
        request: Request,
        timeout: float | None = None,  # noqa: ASYNC109
        *,
        is_traced: bool = True,
    ) -> Response:
        metadata = self._owner + self._trace() if is_traced else ()
        engine = await self._connection.open()
        work = self._connection.serve(engine, rpc.name, request.SerializeToString(), metadata)
        future = asyncio.wrap_future(engine.submit(work))
        self._connection.calls.add(future)
        try:
            async with asyncio.timeout(timeout):
                reply = await future
        except TimeoutError:
            raise self._error(_EXPIRED, rpc) from None
        except CallFailed as error:
            raise self._error(error.failure, rpc) from None
        except asyncio.CancelledError:
            if self._connection.is_closed and future.cancelled():
                raise self._connection.closed() from None
            raise
        finally:
            self._connection.calls.discard(future)
        return rpc.response.FromString(reply)

    async def stream(
        self,
        rpc: ServerStreamRpc[Request, Response],
        request: Request,
        timeout: float | None = None,  # noqa: ASYNC109
        on_open: Callable[[int], None] | None = None,
    ) -> AsyncIterator[Response]:
        data = request.SerializeToString()
        async with aclosing(self._replies(rpc, data, None, timeout, on_open)) as replies:
            async for reply in replies:
                yield reply

    async def converse(
        self, rpc: BidiStreamRpc[Request, Response], requests: AsyncIterator[Request]
    ) -> AsyncIterator[Response]:
        async with aclosing(self._replies(rpc, None, requests)) as replies:
            async for reply in replies:
                yield reply

    async def _replies(
        self,
        rpc: Rpc[Request, Response],
        data: bytes | None,
        requests: AsyncIterator[Request] | None,
        timeout: float | None = None,  # noqa: ASYNC109
        on_open: Callable[[int], None] | None = None,
    ) -> Any:
        engine = await self._connection.open()
        crossing = _Crossing(engine, engine.methods.streams[rpc.name], self._owner + self._trace())
        served = asyncio.wrap_future(engine.submit(crossing.serve(data)))
        served.add_done_callback(crossing.end)
        self._connection.calls.add(served)
        feeding = None if requests is None else asyncio.create_task(crossing.feed(requests))
        ends_at = None if timeout is None else asyncio.get_running_loop().time() + timeout
        try:
            while True:
                try:
                    async with asyncio.timeout_at(ends_at):
                        reply = await crossing.next()
                except TimeoutError:
                    raise self._error(_EXPIRED, rpc) from None
                if reply is None:
                    break
                if isinstance(reply, int):
                    if on_open is not None:
                        on_open(reply)
                else:
                    yield rpc.response.FromString(reply)
            if feeding is not None and feeding.done():
                feeding.result()
            if served.cancelled():
                raise self._connection.closed()
            served.result()
        except CallFailed as error:
            raise self._error(error.failure, rpc) from None
        finally:
            self._connection.calls.discard(served)
            served.cancel()
            if feeding is not None:
                feeding.cancel()

    async def open_stream(self, rpc: BidiStreamRpc[Request, Response]) -> StreamCall[Request, Response]:
        raise NotImplementedError  # appends are unary calls here: see `is_upgraded`

    @property
    def is_upgraded(self) -> bool:
        """Always: a unary call is all that an append needs."""
        return True

    def note_call(self) -> None:
        """Nothing: there is no other transport to change to."""

    async def close(self) -> None:
        await self._connection.close()

    def _error(self, failure: RpcFailure, rpc: Rpc[Any, Any]) -> AnyTapeError:
        trailers = dict(failure.trailers)
        code = trailers.pop(ERROR_CODE_KEY, "")
        return translate(CallFailure(failure.status, failure.text, code, trailers), self.url, rpc.name)


class _Connection:
    """What clients for several lease owners share: the engine, and the order of their appends."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._engine: EmbeddedEngine | None = None
        self._opening = asyncio.Lock()
        self._appends = asyncio.Lock()  # of the engine's event loop
        self.is_closed = False
        self.calls: set[asyncio.Future[Any]] = set()

    async def open(self) -> EmbeddedEngine:
        """The engine, started if this is the first call."""
        if self._engine is not None:
            return self._engine
        async with self._opening:
            if self.is_closed:
                raise self.closed()
            if self._engine is None:
                self._engine = await asyncio.to_thread(acquire, self._url)
            return self._engine

    async def close(self) -> None:
        """Cancel the calls in progress and let go of the engine; the last client of the process stops it."""
        async with self._opening:
            self.is_closed = True
            engine, self._engine = self._engine, None
        for call in self.calls:
            call.cancel()
        if engine is not None:
            await asyncio.to_thread(release, engine)

    def closed(self) -> ClientClosed:
        """The error of a call after `close`, or during it."""
        return ClientClosed(f"The client of {self._url} was closed. Make a new one.")

    async def serve(self, engine: EmbeddedEngine, name: str, data: bytes, metadata: Metadata) -> bytes:
        """Serve a unary call, on the engine's event loop. Appends are prepared in the order they were sent."""
        method = engine.methods.unary[name]
        try:
            if not method.is_append:
                return await method.serve(data, EmbeddedContext(metadata))
            await self._appends.acquire()
            context = EmbeddedContext(metadata, self._appends)
            try:
                return await method.serve(data, context)
            finally:
                context.end_turn()
        except Exception as error:
            raise CallFailed(method.fail(error)) from error


class _Crossing:
    """A stream from the engine's event loop to the client's: replies one way, requests the other."""

    def __init__(self, engine: EmbeddedEngine, method: StreamMethod, metadata: Metadata) -> None:
        self._engine = engine
        self._method = method
        self._metadata = metadata
        self._client = asyncio.get_running_loop()
        self._replies: asyncio.Queue[bytes | int | None] = asyncio.Queue()
        self._requests: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._window = asyncio.Semaphore(WINDOW)

    # ── on the engine's event loop ───────────────────────────────────────────────────────────────

    async def serve(self, data: bytes | None) -> None:
        """Serve the call and hand over its replies, at most WINDOW of them ahead of the client."""
        context = EmbeddedContext(self._metadata, on_position=self._hand_over)
        given = self._incoming() if data is None else data
        try:
            async with aclosing(self._method.serve(given, context)) as replies:
                async for reply in replies:
                    await self._window.acquire()
                    self._hand_over(to_bytes(reply))
        except Exception as error:
            raise CallFailed(self._method.fail(error)) from error

    async def _incoming(self) -> AsyncIterator[bytes]:
        while (data := await self._requests.get()) is not None:
            yield data

    def _hand_over(self, reply: bytes | int) -> None:
        self._client.call_soon_threadsafe(self._replies.put_nowait, reply)

    # ── on the client's ──────────────────────────────────────────────────────────────────────────

    async def next(self) -> bytes | int | None:
        """The next reply, or the position of a subscription; None when the call has ended."""
        reply = await self._replies.get()
        if isinstance(reply, bytes):
            self._engine.loop.call_soon_threadsafe(self._window.release)
        return reply

    def end(self, _: object) -> None:
        """The call has ended: nothing follows the replies that were handed over."""
        self._replies.put_nowait(None)

    async def feed(self, requests: AsyncIterator[Message]) -> None:
        """Hand the engine the requests of the client."""
        try:
            async for request in requests:
                self._engine.loop.call_soon_threadsafe(self._requests.put_nowait, request.SerializeToString())
        finally:
            self._engine.loop.call_soon_threadsafe(self._requests.put_nowait, None)
