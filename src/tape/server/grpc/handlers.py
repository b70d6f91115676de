"""The RPCs of `tape.v1.Tape` as handlers of a gRPC server.

An RPC of the proto without a method answers UNIMPLEMENTED.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, NoReturn, Protocol

import grpc
from google.protobuf.descriptor import MethodDescriptor

from tape.base.telemetry.metrics import Metrics
from tape.server.grpc.access import RpcAccess
from tape.server.grpc.decoders import DecodedRequests, Undecodable, undecodable
from tape.server.grpc.methods import (
    METHODS,
    SERVICE,
    Context,
    Reply,
    RpcFailure,
    UnaryMethod,
    Unserved,
    fail,
    find_function,
    request_decoder,
    to_bytes,
)

Stream = Callable[[Any, Context], AsyncIterator[Reply]]


class GrpcContext(Context, Protocol):
    """The part of a gRPC call that the handlers use."""

    async def abort(self, code: Any, details: str, trailing_metadata: Any = ()) -> NoReturn: ...


def handlers(services: Sequence[Any], unary: Mapping[str, UnaryMethod], metrics: Metrics, access: RpcAccess) -> Any:
    """A generic gRPC handler for the service: its unary methods, and the streams of the services."""
    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            method.name: _unary(unary[method.name])
            if method.name in unary
            else _stream(method, find_function(services, method), metrics, access)
            for method in METHODS
        },
    )


def _unary(method: UnaryMethod) -> Any:
    async def call(data: bytes, context: GrpcContext) -> bytes:
        try:
            return await method.serve(data, context)
        except Exception as error:
            await _abort(context, method.fail(error))

    return grpc.unary_unary_rpc_method_handler(call)


def _stream(method: MethodDescriptor, function: Stream | None, metrics: Metrics, access: RpcAccess) -> Any:
    name, decode = method.name, request_decoder(method)

    async def call(data: Any, context: GrpcContext) -> AsyncIterator[Reply]:
        try:
            if function is None:
                raise Unserved
            caller = await access.admit(name, context)
            stream = access.admission.open_stream(caller)
            try:
                requests = DecodedRequests(name, decode, aiter(data)) if method.client_streaming else None
                request = requests or decode(data)
                if isinstance(request, Undecodable):
                    raise undecodable(name, request)
                replies = function(request, context)
                async for reply in replies if caller.is_open else access.guard(caller, replies):
                    yield reply
                if requests is not None:
                    requests.check()
            finally:
                stream.close()
        except Exception as error:
            await _abort(context, fail(error, name, metrics))
        metrics.rpcs.labels(name, "OK").inc()

    kind = grpc.stream_stream_rpc_method_handler if method.client_streaming else grpc.unary_stream_rpc_method_handler
    return kind(call, response_serializer=to_bytes)


async def _abort(context: GrpcContext, failure: RpcFailure) -> NoReturn:
    await context.abort(grpc.StatusCode[failure.status], failure.text, failure.trailers)
