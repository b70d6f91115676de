"""Calls of a caller of an HTTP request, served in the server's own process by the same methods as those of gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from contextvars import copy_context
from typing import Any, TypeVar

from google.protobuf.message import Message

from tape.client.channel import POSITION_KEY, Channel, Metadata, StreamCall
from tape.client.failures import CallFailure, translate
from tape.client.rpcs import BidiStreamRpc, Rpc, ServerStreamRpc, UnaryRpc
from tape.errors import AnyTapeError
from tape.model.principal import Principal
from tape.server.grpc.access import AdmittedContext
from tape.server.grpc.methods import ERROR_CODE_KEY, Methods, RpcFailure, to_bytes

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


class CallerContext(AdmittedContext):
    """A call on behalf of a principal."""

    __slots__ = ("_metadata", "_on_open", "principal")

    def __init__(self, principal: Principal, metadata: Metadata, on_open: Callable[[int], None] | None = None) -> None:
        self.principal = principal
        self._metadata = metadata
        self._on_open = on_open

    def invocation_metadata(self) -> Metadata:
        """Names and values; the caller is known without them."""
        return self._metadata

    def auth_context(self) -> Mapping[str, Any]:
        """Nothing: the caller is known."""
        return {}

    def peer(self) -> str:
        """This host."""
        return "ipv4:127.0.0.1:0"

    async def send_initial_metadata(self, metadata: Any) -> None:
        """Hand over the position at which a subscription begins."""
        position = dict(metadata).get(POSITION_KEY)
        if position is not None and self._on_open is not None:
            self._on_open(int(position))


class CallerChannel(Channel):
    """Every call is authorized, admitted, limited and counted as one of the principal that comes by gRPC."""

    def __init__(self, methods: Methods, principal: Principal) -> None:
        super().__init__("tape://in-process")
        self._methods = methods
        self._principal = principal

    async def call(
        self,
        rpc: UnaryRpc[Request, Response],
        request: Request,
        timeout: float | None = None,  # noqa: ASYNC109
        *,
        is_traced: bool = True,
    ) -> Response:
        method = self._methods.unary[rpc.name]
        context = CallerContext(self._principal, self._owner + self._trace() if is_traced else ())
        work = method.serve(request.SerializeToString(), context)
        # In a context of its own: the method sets the principal in it.
        task = asyncio.create_task(work, context=copy_context())
        try:
            async with asyncio.timeout(timeout):
                reply = await task
        except TimeoutError:
            raise self._error(RpcFailure("DEADLINE_EXCEEDED", "Deadline Exceeded"), rpc) from None
        except Exception as error:
            raise self._error(method.fail(error), rpc) from None
        finally:
            task.cancel()
        return rpc.response.FromString(reply)

    async def stream(
        self,
        rpc: ServerStreamRpc[Request, Response],
        request: Request,
        timeout: float | None = None,  # noqa: ASYNC109
        on_open: Callable[[int], None] | None = None,
    ) -> AsyncIterator[Response]:
        method = self._methods.streams[rpc.name]
        context = CallerContext(self._principal, self._owner + self._trace(), on_open)
        try:
            async with (
                asyncio.timeout(timeout),
                aclosing(method.serve(request.SerializeToString(), context)) as replies,
            ):
                async for reply in replies:
                    yield rpc.response.FromString(to_bytes(reply))
        except TimeoutError:
            raise self._error(RpcFailure("DEADLINE_EXCEEDED", "Deadline Exceeded"), rpc) from None
        except Exception as error:
            raise self._error(method.fail(error), rpc) from None

    def converse(
        self, rpc: BidiStreamRpc[Request, Response], requests: AsyncIterator[Request]
    ) -> AsyncIterator[Response]:
        raise NotImplementedError  # no tool needs it

    async def open_stream(self, rpc: BidiStreamRpc[Request, Response]) -> StreamCall[Request, Response]:
        raise NotImplementedError  # appends are unary calls here: see `is_upgraded`

    @property
    def is_upgraded(self) -> bool:
        """Always: a unary call is all that an append needs."""
        return True

    def note_call(self) -> None:
        """Nothing: there is no other transport to change to."""

    async def close(self) -> None:
        """Nothing to close."""

    def _error(self, failure: RpcFailure, rpc: Rpc[Any, Any]) -> AnyTapeError:
        trailers = dict(failure.trailers)
        code = trailers.pop(ERROR_CODE_KEY, "")
        return translate(CallFailure(failure.status, failure.text, code, trailers), self.url, rpc.name)
