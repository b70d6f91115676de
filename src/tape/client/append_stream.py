"""What carries appends: the call protocol, or a stream of gRPC, which costs a third of its unary calls."""

from __future__ import annotations

import asyncio
from collections import deque

import grpc

from tape.client import rpcs
from tape.client.channel import Channel, StreamCall
from tape.client.failures import raise_translated, to_error
from tape.errors import PayloadTooLarge, ServerStopping, ServerUnreachable, TapeError
from tape.proto import tape_pb2 as pb

Call = StreamCall[pb.AppendRequest, pb.AppendReply]
# How a call ends when its server dies: whether the requests were carried out is not known.
_LOST = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED)


class AppendStream:
    """Opened by the first append, and again after it broke.

    A request that was not answered may or may not have been appended: its request id lets the server recognize it
    when it is sent again.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._call: Call | None = None
        self._reading: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()  # a call takes one message at a time
        # Requests on the stream without an answer, and whether there are none.
        self._streamed = 0
        self._changing = asyncio.Lock()
        self._drained = asyncio.Event()
        self._drained.set()
        self._waiting: deque[asyncio.Future[list[int]]] = deque()

    async def send(self, request: pb.AppendRequest) -> list[int]:
        """The `global_seq`s of a request, once it is durable."""
        if self._channel.is_upgraded:
            # Requests are appended in the order they are sent: those on the stream first, then one after the other.
            async with self._changing:
                await self._drained.wait()
            response = await self._channel.call(rpcs.APPEND, request, is_traced=False)
            return list(response.global_seqs)
        self._channel.note_call()
        self._streamed += 1
        self._drained.clear()
        try:
            return await self._stream(request)
        finally:
            self._streamed -= 1
            if not self._streamed:
                self._drained.set()

    async def _stream(self, request: pb.AppendRequest) -> list[int]:
        future: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        async with self._writing:
            if self._call is None:
                self._call = await self._channel.open_stream(rpcs.APPEND_STREAM)
                self._reading = asyncio.create_task(self._read(self._call))
            self._waiting.append(future)
            try:
                await self._call.write(request)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass  # the call has ended; `_read` learns why and fails the requests that wait
        return await future

    async def close(self) -> None:
        """Close the stream; no request may be in flight."""
        if self._call is not None:
            self._call.cancel()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self, call: Call) -> None:
        try:
            while (reply := await call.read()) is not grpc.aio.EOF:
                future = self._waiting.popleft()
                if future.done():
                    continue
                if reply.error_code:
                    future.set_exception(to_error(reply.error_code, reply.error_message))
                else:
                    future.set_result(list(reply.global_seqs))
            self._fail_waiting(ServerStopping("The server ended the stream; send the request again."))
        except grpc.aio.AioRpcError as error:
            if error.code() in _LOST:
                self._fail_waiting(
                    ServerUnreachable(f"The connection to {self._channel.url} was lost ({error.details()}).")
                )
                return
            try:
                raise_translated(error, self._channel.url, rpcs.APPEND_STREAM.name)
            except PayloadTooLarge as translated:
                # One message was too large. Whether the others were appended is not known.
                self._fail_waiting(ServerUnreachable(f"The server ended the stream: {translated}"))
            except TapeError as translated:
                self._fail_waiting(translated)
        except asyncio.CancelledError:
            self._fail_waiting(ServerStopping("The client was closed."))
            raise

    def _fail_waiting(self, error: TapeError) -> None:
        self._call = None
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(error)
