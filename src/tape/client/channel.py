"""The way to a server: addresses, the channel, calls, and errors turned back into what they were."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tape.base.telemetry.tracing import NO_TRACE, current_trace, to_traceparent
from tape.client.credentials import Credentials
from tape.errors import InvalidConfig, NotServed, RpcFailed, ServerUnreachable, TapeError, all_errors
from tape.proto import tape_pb2

DEFAULT_URL = "tape://localhost:7878"
ERROR_CODE_KEY = "tape-error-code"
OWNER_KEY = "tape-lease-owner"
CAUSE_KEY = "tape-cause"

# How the channel behaves, by gRPC's names. Its server allows a question every five seconds (see `grpc_options` there).
OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A server that comes back is found again within a second. `min_reconnect_backoff_ms` stays as it is, 20 s: despite
    # its name it is how long one attempt to connect may take, and a far or busy server needs more than a moment.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # A server that vanished without a word is noticed.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
]

_SECURE = ("tapes", "grpcs", "https")

R = TypeVar("R", bound=Message)


def target_of(url: str) -> str:
    """The gRPC target of `tape://host:port`; the scheme may be left out."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        rest = scheme
    elif scheme not in ("tape", "grpc", *_SECURE):
        raise InvalidConfig(f"The server URL {url!r} must look like {DEFAULT_URL}; tapes:// is the same over TLS.")
    rest = rest.rstrip("/")
    if not rest:
        raise InvalidConfig(f"The server URL {url!r} has no host; it must look like {DEFAULT_URL}.")
    port = 443 if is_secure(url) else 7878
    return rest if rest.rpartition(":")[2].isdecimal() else f"{rest}:{port}"


def is_secure(url: str) -> bool:
    """Whether the way to the server is encrypted: `tapes://host`, by the certificates that the system trusts."""
    return url.partition("://")[0] in _SECURE


class Channel:
    """One connection to a server, with every RPC by name."""

    def __init__(self, url: str, lease_owner: str = "", credentials: Credentials | None = None) -> None:
        self.url = url
        self._owner = ((OWNER_KEY, lease_owner),) if lease_owner else ()
        self._credentials = credentials or Credentials()
        target = target_of(url)
        if is_secure(url):
            self._channel = grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(), options=OPTIONS)
        else:
            self._channel = grpc.aio.insecure_channel(target, options=OPTIONS)
        self._calls: dict[str, Callable[..., Any]] = {}

    @property
    def lease_owner(self) -> str:
        """The name that calls say, if they say one."""
        return self._owner[0][1] if self._owner else ""

    def speaking_as(self, lease_owner: str) -> Channel:
        """The same connection, whose calls say another name."""
        other = copy.copy(self)
        other._owner = ((OWNER_KEY, lease_owner),)
        return other

    async def call(self, name: str, request: Message, timeout: float | None = None) -> Any:  # noqa: ASYNC109
        """A unary RPC. Failures are the errors that the server meant."""
        try:
            return await self._bound(name)(request, timeout=timeout, metadata=await self._metadata())
        except grpc.aio.AioRpcError as error:
            raise_meant(error, self.url, name)

    async def stream(self, name: str, request: Message, timeout: float | None = None) -> AsyncIterator[Any]:  # noqa: ASYNC109
        """A streaming RPC; leaving the loop cancels it."""
        call = self._bound(name)(request, timeout=timeout, metadata=await self._metadata())
        try:
            async for reply in call:
                yield reply
        except grpc.aio.AioRpcError as error:
            raise_meant(error, self.url, name)
        finally:
            call.cancel()

    async def converse(self, name: str, requests: AsyncIterator[Message]) -> AsyncIterator[Any]:
        """A call that sends and receives as both sides like; leaving the loop cancels it."""
        call = self._bound(name)(requests, metadata=await self._metadata())
        try:
            async for reply in call:
                yield reply
        except grpc.aio.AioRpcError as error:
            raise_meant(error, self.url, name)
        finally:
            call.cancel()

    async def open_stream(self, name: str) -> Any:
        """A call that sends and receives many messages."""
        return self._bound(name)(metadata=await self._credentials.metadata())

    async def close(self) -> None:
        """End all calls."""
        await self._channel.close()

    async def _metadata(self) -> tuple[tuple[str, str], ...]:
        """Who calls, what proves it, and the span the call belongs to."""
        identity = self._owner + await self._credentials.metadata()
        trace = current_trace()
        if trace is NO_TRACE:
            return identity
        if trace.trace_id:
            identity = (*identity, ("traceparent", to_traceparent(trace)))
        return (*identity, (CAUSE_KEY, trace.cause)) if trace.cause else identity

    def _bound(self, name: str) -> Callable[..., Any]:
        call = self._calls.get(name)
        if call is None:
            method = tape_pb2.DESCRIPTOR.services_by_name["Tape"].methods_by_name[name]
            if method.client_streaming:
                kind = self._channel.stream_stream
            else:
                kind = self._channel.unary_stream if method.server_streaming else self._channel.unary_unary
            call = self._calls[name] = kind(
                f"/tape.v1.Tape/{name}",
                request_serializer=GetMessageClass(method.input_type).SerializeToString,
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
        return call


_ERRORS = all_errors()


def error_of(code: str, message: str) -> TapeError:
    """The error that a server named by its code; one that is newer than this client is a TapeError."""
    kind = _ERRORS.get(code, TapeError)
    error = kind.__new__(kind)
    TapeError.__init__(error, message)  # constructors differ; the message is what the server said
    return error


def raise_meant(error: grpc.aio.AioRpcError, url: str, name: str) -> NoReturn:
    """Raise the Tape error that an RPC error stands for."""
    code = dict(error.trailing_metadata() or ()).get(ERROR_CODE_KEY)
    details = error.details() or ""
    if code is not None:
        raise error_of(str(code), details) from error
    if error.code() == grpc.StatusCode.UNAVAILABLE:
        raise ServerUnreachable(
            f"The Tape server at {url} cannot be reached ({details}). Is it running? Start one with: tape serve"
        ) from error
    if error.code() == grpc.StatusCode.UNIMPLEMENTED:
        raise NotServed(
            f"The Tape server at {url} does not serve {name} (UNIMPLEMENTED): it is older than this client. Update the"
            " server, or use a client of its version."
        ) from error
    raise RpcFailed(f"{error.code().name}: {details}") from error
