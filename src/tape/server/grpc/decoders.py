"""Requests that are no valid Protobuf message, or have a NUL character in a text, are answered with INVALID_ARGUMENT.

gRPC answers an exception of a deserializer with UNKNOWN or INTERNAL and logs its traceback, which lets a caller fill
the log. So deserializers return a marker instead, and the call fails with a proper error.

PostgreSQL cannot store a NUL and fails the statement. Calls of several callers share statements, so a NUL must not
reach the database.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from itertools import chain
from typing import Any, Final, NamedTuple

import grpc
from google.protobuf.message import Message

from tape.base.telemetry.throttle import ThrottledLog
from tape.errors import InvalidInput

_log = ThrottledLog(logging.getLogger(__name__))

# Texts whose NULs the server replaces: a worker reports what its handler raised.
_REPLACED = frozenset({("NackTaskRequest", "error"), ("TaskFailure", "error"), ("DropTasksRequest", "reason")})


class Undecodable(NamedTuple):
    """Stands for a request that cannot be served, with the reason."""

    reason: str


_NO_MESSAGE: Final = Undecodable("is not a valid Protobuf message")


def decoder(parse: Callable[[bytes], Any], *, refuses_nul: bool = False) -> Callable[[bytes], Any]:
    """A deserializer that returns an Undecodable instead of raising."""

    def decode(data: bytes) -> Any:
        try:
            message = parse(data)
        except Exception:  # protobuf raises different types, by implementation
            return _NO_MESSAGE
        # Few messages have a zero byte at all, so few are searched.
        if refuses_nul and b"\0" in data and (name := _find_nul(message)):
            return Undecodable(f"has a NUL character in {name}, which a database cannot store")
        return message

    return decode


def _find_nul(message: Message) -> str:
    """The name of a text with a NUL; empty if there is none."""
    for field, value in message.ListFields():
        if (message.DESCRIPTOR.name, field.name) in _REPLACED:
            continue
        for each in _each(value):
            if isinstance(each, Message):
                if found := _find_nul(each):
                    return f"{field.name}.{found}"
            elif isinstance(each, str) and "\0" in each:
                return field.name
    return ""


def _each(value: Any) -> Iterable[Any]:
    if isinstance(value, Message | str | bytes | int | float):
        return (value,)
    return chain(value, value.values()) if isinstance(value, Mapping) else value


def undecodable(name: str, request: Undecodable) -> InvalidInput:
    """The error of a call with an undecodable request; logs at most one line a second."""
    _log.warn("RPC %s refused: its request %s", name, request.reason)
    return InvalidInput(f"the request of {name} {request.reason}.")


class DecodedRequests:
    """The requests of a stream up to the first undecodable one; `check` raises the error after the handler ended."""

    def __init__(self, name: str, decode: Callable[[bytes], Any], requests: AsyncIterator[bytes]) -> None:
        self._name = name
        self._decode = decode
        self._requests = requests
        self._failed: Undecodable | None = None

    async def next_bytes(self) -> bytes | None:
        """The next request as it arrived, for `decode`; None after the last."""
        return await anext(self._requests, None) if self._failed is None else None

    def decode(self, data: bytes) -> Any:
        """A request, or an Undecodable, after which there is none."""
        request = self._decode(data)
        if isinstance(request, Undecodable):
            self._failed = request
        return request

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        data = await self.next_bytes()
        if data is None or isinstance(request := self.decode(data), Undecodable):
            raise StopAsyncIteration
        return request

    def check(self) -> None:
        """Raise if a request could not be decoded."""
        if self._failed is not None:
            raise undecodable(self._name, self._failed)


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
    decode = decoder(handler.request_deserializer)
    options = {"request_deserializer": decode, "response_serializer": handler.response_serializer}
    if handler.request_streaming:
        options["request_deserializer"] = None

        async def converse(requests: Any, context: Any) -> AsyncIterator[Any]:
            decoded = DecodedRequests(name, decode, aiter(requests))
            async for reply in handler.stream_stream(decoded, context):
                yield reply
            await _check(decoded, context)

        return grpc.stream_stream_rpc_method_handler(converse, **options)

    async def refuse(request: Undecodable, context: Any) -> None:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(undecodable(name, request)))

    if handler.response_streaming:

        async def stream(request: Any, context: Any) -> None:
            if isinstance(request, Undecodable):
                await refuse(request, context)
            await handler.unary_stream(request, context)

        return grpc.unary_stream_rpc_method_handler(stream, **options)

    async def call(request: Any, context: Any) -> Any:
        if isinstance(request, Undecodable):
            await refuse(request, context)
        return await handler.unary_unary(request, context)

    return grpc.unary_unary_rpc_method_handler(call, **options)


async def _check(decoded: DecodedRequests, context: Any) -> None:
    try:
        decoded.check()
    except InvalidInput as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
