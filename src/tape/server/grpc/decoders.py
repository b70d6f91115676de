"""Requests that are no valid Protobuf message are answered with INVALID_ARGUMENT.

gRPC answers an exception of a deserializer with UNKNOWN or INTERNAL and logs its traceback, which lets a caller fill
the log. So deserializers return a marker instead, and the call fails with a proper error.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import grpc

from tape.base.telemetry.throttle import ThrottledLog
from tape.errors import InvalidInput

_log = ThrottledLog(logging.getLogger(__name__))

UNDECODABLE: Final = object()


def decoder(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """A deserializer that returns UNDECODABLE instead of raising."""

    def decode(data: bytes) -> Any:
        try:
            return parse(data)
        except Exception:  # protobuf raises different types, by implementation
            return UNDECODABLE

    return decode


def undecodable(name: str) -> InvalidInput:
    """The error of a call with an undecodable request; logs at most one line a second."""
    _log.warn("RPC %s refused: its request is not a valid Protobuf message", name)
    return InvalidInput(f"the request of {name} is not a valid Protobuf message.")


class DecodedRequests:
    """The requests of a stream up to the first undecodable one; `check` raises the error after the handler ended."""

    def __init__(self, name: str, requests: AsyncIterator[Any]) -> None:
        self._name = name
        self._requests = requests
        self._has_failed = False

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        if self._has_failed:
            raise StopAsyncIteration
        request = await anext(self._requests)
        if request is UNDECODABLE:
            self._has_failed = True
            raise StopAsyncIteration
        return request

    def check(self) -> None:
        """Raise if a request could not be decoded."""
        if self._has_failed:
            raise undecodable(self._name)


class StandardServices:
    """Registers generated services (health, reflection) on a server with handlers that do not raise on bad bytes."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Generated code registers its methods twice; `add_registered_method_handlers` has them by name."""

    def add_registered_method_handlers(self, service: str, methods: dict[str, Any]) -> None:
        """Add the methods of a service."""
        guarded = {name: _guarded(f"{service}/{name}", handler) for name, handler in methods.items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, guarded),))


def _guarded(name: str, handler: Any) -> Any:
    options = {
        "request_deserializer": decoder(handler.request_deserializer),
        "response_serializer": handler.response_serializer,
    }
    if handler.request_streaming:

        async def converse(requests: Any, context: Any) -> AsyncIterator[Any]:
            decoded = DecodedRequests(name, aiter(requests))
            async for reply in handler.stream_stream(decoded, context):
                yield reply
            await _check(decoded, context)

        return grpc.stream_stream_rpc_method_handler(converse, **options)

    async def refuse(context: Any) -> None:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(undecodable(name)))

    if handler.response_streaming:

        async def stream(request: Any, context: Any) -> None:
            if request is UNDECODABLE:
                await refuse(context)
            await handler.unary_stream(request, context)

        return grpc.unary_stream_rpc_method_handler(stream, **options)

    async def call(request: Any, context: Any) -> Any:
        if request is UNDECODABLE:
            await refuse(context)
        return await handler.unary_unary(request, context)

    return grpc.unary_unary_rpc_method_handler(call, **options)


async def _check(decoded: DecodedRequests, context: Any) -> None:
    try:
        decoded.check()
    except InvalidInput as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
