"""The messages of the call protocol `tape/1`: many calls in a message, replies in any order.

A client upgrades an HTTP/1.1 connection (`GET /v1/calls`, `Upgrade: tape/1`). From then on each direction is a sequence
of messages: a length of 4 bytes, big-endian, and so many bytes of MessagePack. The requests and responses in them are
the Protobuf messages of `tape.proto`. `docs/calls.md` has the whole protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Final, Generic, TypeVar

import msgspec
from msgspec import Meta

PROTOCOL: Final = "tape/1"
PATH: Final = "/v1/calls"
# A header of the upgrade: the id of the journal that the client means. A server of another one answers 421.
JOURNAL_HEADER: Final = "tape-journal"

LENGTH_BYTES: Final = 4
MAX_LENGTH: Final = (1 << 32) - 1
# Calls of one message, and pairs of metadata of one call. With the length they bound what decoding a message takes.
MAX_CALLS: Final = 1_024
MAX_METADATA: Final = 32

# Number and name of each status, as gRPC has them.
STATUS_NAMES: Final = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)
STATUS_NUMBERS: Final = {name: number for number, name in enumerate(STATUS_NAMES)}

Metadata = Annotated[list[tuple[str, str]], Meta(max_length=MAX_METADATA)]


class CallFrame(msgspec.Struct, array_like=True, gc=False):
    """One call: the request is its Protobuf message; a timeout of 0 is none."""

    id: int
    method: str
    body: bytes
    timeout_ms: Annotated[int, Meta(ge=0)] = 0
    metadata: Metadata | None = None


class ReplyFrame(msgspec.Struct, array_like=True, gc=False):
    """The answer to the call of the same id: the response, or with another status than 0 the error's text in UTF-8."""

    id: int
    status: int
    body: bytes
    error_code: str = ""
    trailers: list[tuple[str, str]] | None = None


class ClientMessage(msgspec.Struct, array_like=True, gc=False):
    """What a client sends. An empty message is a ping. `token` holds for the connection until another one is sent."""

    calls: Annotated[Sequence[CallFrame], Meta(max_length=MAX_CALLS)] = ()
    cancelled: Annotated[Sequence[int], Meta(max_length=MAX_CALLS)] = ()
    token: str | None = None


class ServerMessage(msgspec.Struct, array_like=True, gc=False):
    """What a server sends. An empty message answers a ping. After `closing` it accepts no more calls."""

    replies: Sequence[ReplyFrame] = ()
    closing: bool = False


AnyMessage = ClientMessage | ServerMessage
Message = TypeVar("Message", bound=AnyMessage)
Part = TypeVar("Part")

_encoder = msgspec.msgpack.Encoder()


class MalformedMessage(Exception):
    """Bytes that are no message of this protocol, or a message that is too large."""


def encode(message: AnyMessage) -> bytes:
    """A message with its length."""
    data = _encoder.encode(message)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


def encode_parts(parts: Sequence[Part], wrap: Callable[[Sequence[Part]], AnyMessage], max_bytes: int) -> bytes:
    """Parts in as few messages as possible, none of which is longer, unless it has a single part."""
    data = encode(wrap(parts))
    if len(data) <= max_bytes or len(parts) == 1:
        return data
    half = len(parts) // 2
    return encode_parts(parts[:half], wrap, max_bytes) + encode_parts(parts[half:], wrap, max_bytes)


class FrameReader(Generic[Message]):
    """Splits the bytes of one direction into messages."""

    def __init__(self, kind: type[Message], max_bytes: int = MAX_LENGTH) -> None:
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(kind)
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    @property
    def is_empty(self) -> bool:
        """Whether no part of a message is held."""
        return not self._buffer

    def feed(self, data: bytes) -> None:
        """Add bytes that arrived."""
        self._buffer += data

    def next(self) -> Message | None:
        """The next message; None until the rest of it arrives. Raises MalformedMessage."""
        buffer = self._buffer
        if len(buffer) < LENGTH_BYTES:
            return None
        length = int.from_bytes(buffer[:LENGTH_BYTES], "big")
        if length > self._max_bytes:
            raise MalformedMessage(f"a message of {length} bytes; the limit is {self._max_bytes}")
        end = LENGTH_BYTES + length
        if len(buffer) < end:
            return None
        try:
            with memoryview(buffer) as view, view[LENGTH_BYTES:end] as data:
                message = self._decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedMessage(str(error)) from None
        del buffer[:end]
        return message
