"""The RPCs of `tape.v1.Tape` as handlers of a gRPC server.

An RPC of the proto without a method answers UNIMPLEMENTED.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, NoReturn, Protocol

import grpc

from tape.server.grpc.methods import (
    SERVICE,
    Context,
    Methods,
    Reply,
    RpcFailure,
    StreamMethod,
    UnaryMethod,
    to_bytes,
)


class GrpcContext(Context, Protocol):
    """The part of a gRPC call that the handlers use."""

    async def abort(self, code: Any, details: str, trailing_metadata: Any = ()) -> NoReturn: ...


def handlers(methods: Methods) -> Any:
    """A generic gRPC handler for the service."""
    unary = {name: _unary(method) for name, method in methods.unary.items()}
    streams = {name: _stream(method) for name, method in methods.streams.items()}
    return grpc.method_handlers_generic_handler(SERVICE, unary | streams)


def _unary(method: UnaryMethod) -> Any:
    async def call(data: bytes, context: GrpcContext) -> bytes:
        try:
            return await method.serve(data, context)
        except Exception as error:
            await _abort(context, method.fail(error))

    return grpc.unary_unary_rpc_method_handler(call)


def _stream(method: StreamMethod) -> Any:
    async def call(data: Any, context: GrpcContext) -> AsyncIterator[Reply]:
        try:
            async with aclosing(method.serve(data, context)) as replies:
                async for reply in replies:
                    yield reply
        except Exception as error:
            await _abort(context, method.fail(error))

    kind = grpc.stream_stream_rpc_method_handler if method.has_request_stream else grpc.unary_stream_rpc_method_handler
    return kind(call, response_serializer=to_bytes)


async def _abort(context: GrpcContext, failure: RpcFailure) -> NoReturn:
    await context.abort(grpc.StatusCode[failure.status], failure.text, failure.trailers)
