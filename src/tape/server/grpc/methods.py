"""The methods of `tape.v1.Tape`, and how they are served: the same way for gRPC, the call protocol and in the process.

Methods return a message or its bytes: entries are encoded once and shared.
"""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from ipaddress import IPv6Address, ip_address
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tape.base.telemetry import spans
from tape.base.telemetry.metrics import Metrics
from tape.base.telemetry.tracing import NO_TRACE, Trace, parse_traceparent
from tape.engine.reactions.registry import qualify_reaction
from tape.errors import CursorDiverged, EntryDamaged, Overloaded, TapeError, TenantLimitReached
from tape.model.entry import check_id
from tape.model.principal import ADMIN, OPERATOR, SYSTEM, SYSTEM_SCOPE, current_principal
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
# The name of all addresses that a process of the same machine calls from.
LOCAL = "localhost"
# Sent when a subscription begins: the global_seq after which it reads. A client that has received nothing yet resumes
# from there.
POSITION_KEY = "tape-position"
INTERNAL_ERROR = "Internal error; the server's log has the details."

# The journal checks each text of a draft, and answers each request of a stream on its own.
CHECKS_NUL = frozenset({"Append", "AppendStream"})
# How the names of RPCs begin that only read.
READING = ("Get", "List", "Explain", "Test")

METHODS: Sequence[MethodDescriptor] = tape_pb2.DESCRIPTOR.services_by_name["Tape"].methods

Reply = Message | bytes
Serve = Callable[[Any, "Context"], Awaitable[Reply]]
Stream = Callable[[Any, "Context"], AsyncIterator[Reply]]


class Context(Protocol):
    """The part of a call that the services use."""

    def invocation_metadata(self) -> Any: ...
    def peer(self) -> str: ...
    async def send_initial_metadata(self, metadata: Any) -> None: ...


class OrderedContext(ABC):
    """A call of a connection that keeps appends in order: each is prepared after the one that was sent before it."""

    __slots__ = ()

    @abstractmethod
    def end_turn(self) -> None:
        """Let the next append be prepared."""


class Unserved(Exception):
    """No service of this version has a function for the RPC."""


class RpcFailure(NamedTuple):
    """The error of a call: the name of its status, its text, and trailers with names and values."""

    status: str
    text: str
    trailers: tuple[tuple[str, str], ...] = ()


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


def end_turn(context: Context) -> None:
    """The append of a call is prepared, and submitted next: let the next one of its connection be prepared."""
    if isinstance(context, OrderedContext):
        context.end_turn()


async def send_position(context: Context, position: int) -> None:
    """Send the caller the position at which its subscription begins."""
    await context.send_initial_metadata(((POSITION_KEY, str(position)),))


def owner_of(context: Context) -> str:
    """The lease owner that the caller names in the `tape-lease-owner` metadata; empty if none."""
    for key, value in context.invocation_metadata() or ():
        if key == OWNER_KEY:
            return str(value)
    return ""


def caller_of(context: Context) -> str:
    """Who makes a call, to compare with who has taken a lease: tenant, user and key, on an open server the host."""
    principal = current_principal()
    if principal is not SYSTEM and not principal.is_open:
        return f"{principal.tenant}/{principal.user or principal.key_id}"
    return f"host {host_of(context.peer())}"


def host_of(peer: str) -> str:
    """The host of an address as gRPC writes it: `ipv4:10.0.0.7:4711`, `ipv6:%5B::1%5D:4711`, `unix:/run/tape`.

    All addresses of this machine's loopback interface are one host.
    """
    kind, _, address = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return LOCAL
    host = address.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        found = ip_address(host)
    except ValueError:
        return host
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return LOCAL if found.is_loopback else str(found)


def is_operator() -> bool:
    """Whether the caller may end runs that other processes carry out: scope `operator`, `admin` or `system`."""
    return current_principal().has(OPERATOR, ADMIN, SYSTEM_SCOPE)


def to_bytes(reply: Reply) -> bytes:
    """A reply on the wire."""
    return reply if isinstance(reply, bytes) else reply.SerializeToString()


def request_decoder(method: MethodDescriptor) -> Callable[[bytes], Any]:
    """The decoder of a method's requests. It returns an Undecodable instead of raising."""
    return decoder(GetMessageClass(method.input_type).FromString, refuses_nul=method.name not in CHECKS_NUL)


def find_function(services: Sequence[Any], method: MethodDescriptor) -> Any:
    """The `snake_case` method of a service that serves an RPC; None if there is none."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower()
    return next((getattr(service, name) for service in services if hasattr(service, name)), None)


class Methods(NamedTuple):
    """The RPCs by name."""

    unary: Mapping[str, UnaryMethod]
    streams: Mapping[str, StreamMethod]


def bind_methods(services: Sequence[Any], metrics: Metrics, access: RpcAccess, calls: UnaryCalls) -> Methods:
    """Bind each RPC of the proto to the function that serves it."""
    unary, streams = {}, {}
    for method in METHODS:
        function = find_function(services, method)
        if method.client_streaming or method.server_streaming:
            streams[method.name] = StreamMethod(method, function, metrics, access)
        else:
            unary[method.name] = UnaryMethod(method, function, metrics, access, calls)
    return Methods(unary, streams)


class UnaryMethod:
    """A unary RPC: admits its calls, decodes their requests and counts how they end."""

    def __init__(
        self, method: MethodDescriptor, function: Serve | None, metrics: Metrics, access: RpcAccess, calls: UnaryCalls
    ) -> None:
        self.name = name = method.name
        self._decode = request_decoder(method)
        self._access = access
        self._calls = calls
        self._metrics = metrics
        self.is_append, self._is_read = name == "Append", name.startswith(READING)
        self._succeeded = metrics.rpcs.labels(name, "OK")
        self._function = _in_span(name, function) if function is not None and spans.are_recorded() else function

    async def serve(self, data: bytes, context: Context) -> bytes:
        """The response to a request as it arrived. What it raises, `fail` describes."""
        if self._function is None:
            raise Unserved
        self._calls.enter()
        try:
            # A request stays bytes until its caller is known and admitted.
            caller = await self._access.admit(self.name, context)
            ticket = self._access.admission.enter(caller, len(data), appends=self.is_append, reads=self._is_read)
            try:
                await ticket.turn()
                request = self._decode(data)
                if isinstance(request, Undecodable):
                    raise undecodable(self.name, request)
                if self.is_append:
                    ticket.charge_appends(len(request.drafts))
                reply = await self._function(request, context)
            finally:
                ticket.leave()
        finally:
            self._calls.leave()
        self._succeeded.inc()
        return to_bytes(reply)

    def fail(self, error: Exception) -> RpcFailure:
        """Count a failed call, and describe its error for the caller."""
        return fail(error, self.name, self._metrics)


class StreamMethod:
    """A streaming RPC: admits its calls, decodes their requests and counts how they end."""

    def __init__(self, method: MethodDescriptor, function: Stream | None, metrics: Metrics, access: RpcAccess) -> None:
        self.name = method.name
        self.has_request_stream = method.client_streaming
        self._decode = request_decoder(method)
        self._function = function
        self._metrics = metrics
        self._access = access

    async def serve(self, data: Any, context: Context) -> AsyncGenerator[Reply, None]:
        """The replies to a request as it arrived, or to an iterator of them. What it raises, `fail` describes."""
        if self._function is None:
            raise Unserved
        caller = await self._access.admit(self.name, context)
        stream = self._access.admission.open_stream(caller)
        try:
            requests = DecodedRequests(self.name, self._decode, aiter(data)) if self.has_request_stream else None
            request = requests or self._decode(data)
            if isinstance(request, Undecodable):
                raise undecodable(self.name, request)
            replies = self._function(request, context)
            async for reply in replies if caller.is_open else self._access.guard(caller, replies):
                yield reply
            if requests is not None:
                requests.check()
        finally:
            stream.close()
        self._metrics.rpcs.labels(self.name, "OK").inc()

    def fail(self, error: Exception) -> RpcFailure:
        """Count a failed call, and describe its error for the caller."""
        return fail(error, self.name, self._metrics)


def _in_span(name: str, function: Serve) -> Serve:
    """The same function in a span of its own, below the caller's."""
    attributes = {"rpc.system": "grpc", "rpc.service": SERVICE, "rpc.method": name}

    async def call(request: Any, context: Context) -> Reply:
        trace = trace_of(context)
        with spans.child_span(f"{SERVICE}/{name}", trace.trace_id, trace.span_id, attributes, "SERVER"):
            return await function(request, context)

    return call


def fail(error: Exception, name: str, metrics: Metrics) -> RpcFailure:
    """Count a failed call of an RPC, and describe its error for the caller."""
    failure = _describe(error, name)
    metrics.rpcs.labels(name, failure.status).inc()
    return failure


def _describe(error: Exception, name: str) -> RpcFailure:
    if isinstance(error, Unserved):
        return RpcFailure("UNIMPLEMENTED", f"{name} is not served by this version of Tape.")
    if not isinstance(error, TapeError):
        log.error("RPC %s failed", name, exc_info=error)
        return RpcFailure("INTERNAL", INTERNAL_ERROR)
    trailers: tuple[tuple[str, str], ...] = ((ERROR_CODE_KEY, error.code),)
    if isinstance(error, TenantLimitReached):
        trailers += ((PUSHBACK_KEY, str(round(error.retry_after_s * 1_000))),)
    elif isinstance(error, EntryDamaged | CursorDiverged):
        trailers += ((GAP_KEY, f"{error.first}-{error.last}"),)
    return RpcFailure(error.status, str(error), trailers)
