"""The connection to a server: its address, and typed calls, by gRPC or on a connection of the call protocol.

A URL with a scheme of `ENGINES` has no server: its calls are served in this process.
"""

from __future__ import annotations

import copy
import importlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol, TypeVar

import grpc
from google.protobuf.message import Message

from tape.base.telemetry.tracing import NO_TRACE, current_trace, to_traceparent
from tape.base.tls import ClientTls, load_client_tls
from tape.base.url_mask import mask_urls
from tape.client import rpcs
from tape.client.credentials import Credentials
from tape.client.failures import SECURE, is_secure, raise_translated
from tape.client.rpcs import BidiStreamRpc, Rpc, ServerStreamRpc, UnaryRpc
from tape.client.upgrade import Transport, Upgrade
from tape.errors import InvalidConfig
from tape.proto import tape_pb2 as pb

DEFAULT_URL = "tape://localhost:7878"
OWNER_KEY = "tape-lease-owner"
CAUSE_KEY = "tape-cause"
POSITION_KEY = "tape-position"
# Schemes of URLs whose calls are served in this process, and the module with the channel to that engine.
ENGINES = {"sqlite": "tape.embedded.channel"}

# gRPC channel options. The server allows one keepalive ping every 5 s (see `grpc_options` there).
OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Reconnect within 1 s of a server's restart. `min_reconnect_backoff_ms` keeps its default of 20 s: despite its name
    # it is the timeout of one attempt to connect, which a distant or busy server needs.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Detect a connection that is lost without a FIN or RST while calls are open: 6 s after its last byte a ping goes,
    # and 3 s without a byte after that end it. Servers of every version permit a ping every 5 s.
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
    # While data flows, gRPC pings in order to measure the bandwidth. No other ping is sent until that one is answered,
    # and its own timeout is 60 s by default.
    ("grpc.http2.ping_timeout_ms", 8_000),
]

Metadata = tuple[tuple[str, str], ...]
Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
Sent = TypeVar("Sent", bound=Message, contravariant=True)
Received = TypeVar("Received", bound=Message, covariant=True)


class StreamCall(Protocol[Sent, Received]):
    """An open bidirectional stream: what this package uses of gRPC's call object."""

    async def write(self, request: Sent) -> None: ...

    async def read(self) -> Received: ...

    def cancel(self) -> bool: ...


def target_of(url: str) -> str:
    """The gRPC target of `tape://host:port`; the scheme may be left out."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        rest = scheme
    elif scheme not in ("tape", "grpc", *SECURE):
        raise InvalidConfig(
            f"The server URL {mask_urls(url)!r} must look like {DEFAULT_URL}; tapes:// is the same over TLS."
        )
    rest = rest.rstrip("/")
    if not rest:
        raise InvalidConfig(f"The server URL {mask_urls(url)!r} has no host; it must look like {DEFAULT_URL}.")
    port = 443 if is_secure(url) else 7878
    return rest if rest.rpartition(":")[2].isdecimal() else f"{rest}:{port}"


def open_channel(url: str) -> Any:
    """A gRPC channel to a server; over TLS with the files of TAPE_CA, TAPE_CLIENT_CERT and TAPE_CLIENT_KEY."""
    target = target_of(url)
    if not is_secure(url):
        return grpc.aio.insecure_channel(target, options=OPTIONS)
    tls = load_client_tls()
    if tls != ClientTls():
        tls.context()  # raises what gRPC would only log
    return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(*tls.contents()), options=OPTIONS)


class Channel(ABC):
    """Typed calls of one client."""

    def __init__(self, url: str, lease_owner: str = "") -> None:
        self.url = url
        self._owner = ((OWNER_KEY, lease_owner),) if lease_owner else ()

    @property
    def lease_owner(self) -> str:
        """The lease owner that calls are made for; empty if they name none."""
        return self._owner[0][1] if self._owner else ""

    def with_lease_owner(self, lease_owner: str) -> Channel:
        """The same connection with calls on behalf of another lease owner."""
        other = copy.copy(self)
        other._owner = ((OWNER_KEY, lease_owner),)
        return other

    @abstractmethod
    async def call(
        self,
        rpc: UnaryRpc[Request, Response],
        request: Request,
        timeout: float | None = None,  # noqa: ASYNC109
        *,
        is_traced: bool = True,
    ) -> Response:
        """Make a unary call; raises the error that the server reported.

        A call that is not traced carries no trace context: its request does, for each of its parts.
        """

    @abstractmethod
    def stream(
        self,
        rpc: ServerStreamRpc[Request, Response],
        request: Request,
        timeout: float | None = None,
        on_open: Callable[[int], None] | None = None,
    ) -> AsyncIterator[Response]:
        """Make a server-streaming call; leaving the loop cancels it.

        `on_open` gets the position at which the server begins to read, if the server says so.
        """

    @abstractmethod
    def converse(
        self, rpc: BidiStreamRpc[Request, Response], requests: AsyncIterator[Request]
    ) -> AsyncIterator[Response]:
        """Make a bidirectional call that sends what `requests` yields; leaving the loop cancels it."""

    @abstractmethod
    async def open_stream(self, rpc: BidiStreamRpc[Request, Response]) -> StreamCall[Request, Response]:
        """Open a bidirectional call for the caller to write to and read from."""

    @property
    @abstractmethod
    def is_upgraded(self) -> bool:
        """Whether unary calls cost less than messages on a stream of gRPC."""

    @abstractmethod
    def note_call(self) -> None:
        """An append is sent on a stream of gRPC: it counts as a call."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect; calls in progress are cancelled."""

    def _trace(self) -> Metadata:
        trace = current_trace()
        if trace is NO_TRACE:
            return ()
        found = (("traceparent", to_traceparent(trace)),) if trace.trace_id else ()
        return (*found, (CAUSE_KEY, trace.cause)) if trace.cause else found


def connect(url: str, lease_owner: str, credentials: Credentials, transport: Transport) -> Channel:
    """The channel of a URL: to a server, or to an engine in this process."""
    module = ENGINES.get(url.partition(":")[0].lower())
    if module is None:
        return GrpcChannel(url, lease_owner, credentials, transport)
    # By name: this package is part of processes without a database.
    engine: type[Channel] = importlib.import_module(module).EmbeddedChannel
    return engine(url, lease_owner)


class GrpcChannel(Channel):
    """One connection to a server by gRPC. With the transport `auto` unary calls change to the call protocol."""

    def __init__(
        self,
        url: str,
        lease_owner: str = "",
        credentials: Credentials | None = None,
        transport: Transport = "auto",
    ) -> None:
        super().__init__(url, lease_owner)
        self._credentials = credentials or Credentials()
        self._channel = open_channel(url)
        # gRPC has no type annotations: `call`, `stream` and `converse` type what goes in and comes out.
        self._calls: dict[Rpc[Any, Any], Callable[..., Any]] = {}
        self._upgrade = Upgrade(
            url, target_of(url), self._ask_info, self._credentials.token, is_off=transport == "grpc"
        )

    async def call(
        self,
        rpc: UnaryRpc[Request, Response],
        request: Request,
        timeout: float | None = None,  # noqa: ASYNC109
        *,
        is_traced: bool = True,
    ) -> Response:
        metadata = self._owner + self._trace() if is_traced else ()
        token = await self._credentials.token()
        if (connection := self._upgrade.connection) is not None:
            body = request.SerializeToString()
            if len(body) <= connection.max_call_bytes:
                return rpc.response.FromString(await connection.call(rpc.name, body, metadata, token, timeout))
        self._upgrade.note_call()
        return await self._call_by_grpc(rpc, request, metadata, timeout)

    def note_call(self) -> None:
        self._upgrade.note_call()

    @property
    def is_upgraded(self) -> bool:
        """Whether unary calls are made on a connection of the call protocol."""
        return self._upgrade.connection is not None

    async def _call_by_grpc(
        self,
        rpc: UnaryRpc[Request, Response],
        request: Request,
        metadata: Metadata = (),
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Response:
        metadata += await self._credentials.metadata()
        try:
            response: Response = await self._bound(rpc)(request, timeout=timeout, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            raise_translated(error, self.url, rpc.name)
        return response

    async def _ask_info(self) -> pb.ServerInfo:
        return await self._call_by_grpc(rpcs.GET_SERVER_INFO, pb.GetServerInfoRequest())

    async def stream(
        self,
        rpc: ServerStreamRpc[Request, Response],
        request: Request,
        timeout: float | None = None,  # noqa: ASYNC109
        on_open: Callable[[int], None] | None = None,
    ) -> AsyncIterator[Response]:
        call = self._bound(rpc)(request, timeout=timeout, metadata=await self._metadata())
        try:
            if on_open is not None:
                position = dict(await call.initial_metadata() or ()).get(POSITION_KEY)
                if position is not None:
                    on_open(int(position))
            async for response in call:
                yield response
        except grpc.aio.AioRpcError as error:
            raise_translated(error, self.url, rpc.name)
        finally:
            call.cancel()

    async def converse(
        self, rpc: BidiStreamRpc[Request, Response], requests: AsyncIterator[Request]
    ) -> AsyncIterator[Response]:
        call = self._bound(rpc)(requests, metadata=await self._metadata())
        try:
            async for response in call:
                yield response
        except grpc.aio.AioRpcError as error:
            raise_translated(error, self.url, rpc.name)
        finally:
            call.cancel()

    async def open_stream(self, rpc: BidiStreamRpc[Request, Response]) -> StreamCall[Request, Response]:
        call: StreamCall[Request, Response] = self._bound(rpc)(metadata=await self._credentials.metadata())
        return call

    async def close(self) -> None:
        await self._upgrade.close()
        await self._channel.close()

    async def _metadata(self) -> Metadata:
        """Lease owner, credentials and trace context of one call."""
        return self._owner + await self._credentials.metadata() + self._trace()

    def _bound(self, rpc: Rpc[Request, Response]) -> Callable[..., Any]:
        call = self._calls.get(rpc)
        if call is None:
            match rpc:
                case UnaryRpc():
                    kind = self._channel.unary_unary
                case ServerStreamRpc():
                    kind = self._channel.unary_stream
                case _:
                    kind = self._channel.stream_stream
            call = self._calls[rpc] = kind(
                f"/tape.v1.Tape/{rpc.name}",
                request_serializer=rpc.request.SerializeToString,
                response_deserializer=rpc.response.FromString,
            )
        return call


class ChannelCalls:
    """What the groups of calls that make up a client share."""

    _channel: Channel
