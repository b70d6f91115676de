"""Binds the RPCs of `tape.v1.Tape` to the methods that serve them.

An RPC of the proto without a method answers UNIMPLEMENTED. Methods return a message or its
bytes: entries are encoded once and shared.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple, NoReturn, Protocol

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tape.base.telemetry import spans
from tape.base.telemetry.metrics import Metrics
from tape.base.telemetry.tracing import NO_TRACE, Trace, parse_traceparent
from tape.engine.reactions.registry import qualify_reaction
from tape.errors import CursorDiverged, EntryDamaged, Overloaded, TapeError, TenantLimitReached
from tape.model.entry import check_id
from tape.proto import tape_pb2
from tape.server.grpc.access import RpcAccess
from tape.server.grpc.decoders import DecodedRequests, Undecodable, decoder, undecodable

log = logging.getLogger(__name__)

SERVICE = "tape.v1.Tape"
ERROR_CODE_KEY = "tape-error-code"
# Milliseconds after which the call may be repeated: gRPC's own name for it.
PUSHBACK_KEY = "grpc-retry-pushback-ms"
# The first and the last number of the gap that ended a stream: resume after the last.
GAP_KEY = "tape-gap"
OWNER_KEY = "tape-lease-owner"
CAUSE_KEY = "tape-cause"
# Sent when a subscription begins: the global_seq after which it reads. A client that has received nothing yet resumes
# from there.
POSITION_KEY = "tape-position"
INTERNAL_ERROR = "Internal error; the server's log has the details."

# The journal checks each text of a draft, and answers each request of a stream on its own.
CHECKS_NUL = frozenset({"Append", "AppendStream"})
# How the names of RPCs begin that only read.
READING = ("Get", "List", "Explain", "Test")

Reply = Message | bytes


class Context(Protocol):
    """The part of a gRPC call that the services use."""

    def invocation_metadata(self) -> Any: ...
    def set_code(self, code: Any) -> None: ...
    async def send_initial_metadata(self, metadata: Any) -> None: ...
    async def abort(self, code: Any, details: str, trailing_metadata: Any = ()) -> NoReturn: ...


class UnaryCalls:
    """The unary calls in progress; `enter` raises beyond the limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0

    def enter(self) -> None:
        """Count a call that begins."""
        if self._count >= self._limit:
            raise Overloaded(f"{self._limit} calls are in progress (grpc_max_concurrent_calls). Try again.")
        self._count += 1

    def leave(self) -> None:
        """Count a call that ended."""
        self._count -= 1


def handlers(services: list[Any], metrics: Metrics, access: RpcAccess, calls: UnaryCalls) -> Any:
    """A generic gRPC handler for the service, served by the `snake_case` methods of the services."""
    bound = {}
    for method in tape_pb2.DESCRIPTOR.services_by_name["Tape"].methods:
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower()
        function = next((getattr(service, name) for service in services if hasattr(service, name)), None)
        bound[method.name] = _handler(method, function, metrics, access, calls)
    return grpc.method_handlers_generic_handler(SERVICE, bound)


def trace_of(context: Context) -> Trace:
    """The caller's span, from the `traceparent` metadata, and the reaction it works for, from `tape-cause`."""
    trace, cause = NO_TRACE, ""
    for key, value in context.invocation_metadata() or ():
        if key == "traceparent":
            trace = parse_traceparent(value)
        elif key == CAUSE_KEY:
            cause = str(value)
            check_id(CAUSE_KEY, cause)
            cause = qualify_reaction(cause)
    return trace._replace(cause=cause) if cause else trace


async def send_position(context: Context, position: int) -> None:
    """Send the caller the position at which its subscription begins."""
    await context.send_initial_metadata(((POSITION_KEY, str(position)),))


def owner_of(context: Context) -> str:
    """The lease owner that the caller names in the `tape-lease-owner` metadata; empty if none."""
    for key, value in context.invocation_metadata() or ():
        if key == OWNER_KEY:
            return str(value)
    return ""


class _Rpc(NamedTuple):
    """The name of an RPC, and the decoder of its requests."""

    name: str
    decode: Callable[[bytes], Any]


def _handler(method: Any, function: Any, metrics: Metrics, access: RpcAccess, calls: UnaryCalls) -> Any:
    # Requests stay bytes until their caller is known and admitted.
    options = {"request_deserializer": None, "response_serializer": _to_bytes}
    parse = GetMessageClass(method.input_type).FromString
    rpc = _Rpc(method.name, decoder(parse, refuses_nul=method.name not in CHECKS_NUL))
    if method.client_streaming:
        stream = _stream(rpc, function, metrics, access, is_client_streaming=True)
        return grpc.stream_stream_rpc_method_handler(stream, **options)
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(_stream(rpc, function, metrics, access), **options)
    return grpc.unary_unary_rpc_method_handler(_unary(rpc, function, metrics, access, calls), **options)


def _to_bytes(reply: Reply) -> bytes:
    return reply if isinstance(reply, bytes) else reply.SerializeToString()


def _unary(
    rpc: _Rpc,
    function: Callable[[Any, Context], Awaitable[Reply]] | None,
    metrics: Metrics,
    access: RpcAccess,
    calls: UnaryCalls,
) -> Callable[[Any, Context], Awaitable[Reply]]:
    name, decode = rpc
    admission = access.admission
    is_append, is_read = name == "Append", name.startswith(READING)
    succeeded = metrics.rpcs.labels(name, "OK")
    if function is not None and spans.are_recorded():
        function = _in_span(name, function)

    async def call(data: bytes, context: Context) -> Reply:
        if function is None:
            await _not_served(context, name, metrics)
        try:
            calls.enter()
            try:
                caller = await access.admit(name, context)
                ticket = admission.enter(caller, len(data), appends=is_append, reads=is_read)
                try:
                    await ticket.turn()
                    request = decode(data)
                    if isinstance(request, Undecodable):
                        raise undecodable(name, request)
                    if is_append:
                        ticket.charge_appends(len(request.drafts))
                    reply = await function(request, context)
                finally:
                    ticket.leave()
            finally:
                calls.leave()
        except Exception as error:
            await _fail(context, error, name, metrics)
        succeeded.inc()
        return reply

    return call


def _in_span(
    name: str, function: Callable[[Any, Context], Awaitable[Reply]]
) -> Callable[[Any, Context], Awaitable[Reply]]:
    """The same function in a span of its own, below the caller's."""
    attributes = {"rpc.system": "grpc", "rpc.service": SERVICE, "rpc.method": name}

    async def call(request: Any, context: Context) -> Reply:
        trace = trace_of(context)
        with spans.child_span(f"{SERVICE}/{name}", trace.trace_id, trace.span_id, attributes, "SERVER"):
            return await function(request, context)

    return call


def _stream(
    rpc: _Rpc,
    function: Callable[[Any, Context], AsyncIterator[Reply]] | None,
    metrics: Metrics,
    access: RpcAccess,
    *,
    is_client_streaming: bool = False,
) -> Callable[[Any, Context], AsyncIterator[Reply]]:
    name, decode = rpc

    async def call(data: Any, context: Context) -> AsyncIterator[Reply]:
        if function is None:
            await _not_served(context, name, metrics)
        try:
            caller = await access.admit(name, context)
            stream = access.admission.open_stream(caller)
            try:
                requests = DecodedRequests(name, decode, aiter(data)) if is_client_streaming else None
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
            await _fail(context, error, name, metrics)
        metrics.rpcs.labels(name, "OK").inc()

    return call


async def _not_served(context: Context, name: str, metrics: Metrics) -> NoReturn:
    metrics.rpcs.labels(name, "UNIMPLEMENTED").inc()
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{name} is not served by this version of Tape.")


async def _fail(context: Context, error: Exception, name: str, metrics: Metrics) -> NoReturn:
    if isinstance(error, TapeError):
        status, text = error.status, str(error)
        trailers: tuple[tuple[str, str], ...] = ((ERROR_CODE_KEY, error.code),)
        if isinstance(error, TenantLimitReached):
            trailers += ((PUSHBACK_KEY, str(round(error.retry_after_s * 1_000))),)
        elif isinstance(error, EntryDamaged | CursorDiverged):
            trailers += ((GAP_KEY, f"{error.first}-{error.last}"),)
    elif isinstance(error, grpc.aio.AbortError):
        raise error
    else:
        log.exception("RPC %s failed", name)
        status, trailers, text = "INTERNAL", (), INTERNAL_ERROR
    metrics.rpcs.labels(name, status).inc()
    await context.abort(grpc.StatusCode[status], text, trailers)
