"""The stream that carries appends: a third of the cost of one call each, answered in order."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import grpc

from tape.client.channel import Channel, error_of, raise_meant
from tape.errors import ServerStopping, ServerUnreachable, TapeError
from tape.proto import tape_pb2 as pb

# How a call ends when its server dies: nobody said whether the requests were carried out.
_LOST = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED)


class AppendStream:
    """Opened when first needed, and again after it broke. What was not answered then may have been
    appended or not: its request id tells the server when it is sent again."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._call: Any = None
        self._reading: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()  # a call takes one message at a time
        self._waiting: deque[asyncio.Future[list[int]]] = deque()

    async def send(self, request: pb.AppendRequest) -> list[int]:
        """The `global_seq`s of a request, once it is durable."""
        future: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        async with self._writing:
            if self._call is None:
                self._call = await self._channel.open_stream("AppendStream")
                self._reading = asyncio.create_task(self._read(self._call))
            self._waiting.append(future)
            try:
                await self._call.write(request)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass  # the call is over; whoever reads it learns why and tells everyone who waits
        return await future

    async def close(self) -> None:
        """End the stream; nothing may be on its way."""
        if self._call is not None:
            self._call.cancel()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self, call: Any) -> None:
        try:
            while (reply := await call.read()) is not grpc.aio.EOF:
                future = self._waiting.popleft()
                if future.done():
                    continue
                if reply.error_code:
                    future.set_exception(error_of(reply.error_code, reply.error_message))
                else:
                    future.set_result(list(reply.global_seqs))
            self._break(ServerStopping("The server ended the stream; send the request again."))
        except grpc.aio.AioRpcError as error:
            if error.code() in _LOST:
                self._break(ServerUnreachable(f"The connection to {self._channel.url} was lost ({error.details()})."))
                return
            try:
                raise_meant(error, self._channel.url, "AppendStream")
            except TapeError as meant:
                self._break(meant)
        except asyncio.CancelledError:
            self._break(ServerStopping("The client was closed."))
            raise

    def _break(self, error: TapeError) -> None:
        self._call = None
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(error)
