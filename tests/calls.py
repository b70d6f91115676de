"""A plain client of the call protocol `tape/1` for tests: what is sent and received, message by message."""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import Callable
from types import TracebackType
from typing import Any

from google.protobuf.message import Message

from tape.proto.call_frames import (
    STATUS_NAMES,
    CallFrame,
    ClientMessage,
    FrameReader,
    ReplyFrame,
    ServerMessage,
    encode,
)
from tape.server.server import Server

UPGRADE = {"connection": "Upgrade", "upgrade": "tape/1"}
# However busy the machine is, an answer arrives within this many seconds.
ANSWER_S = 60


class Calls:
    """A connection. Use as an async context manager; it is upgraded then."""

    def __init__(self, address: str, token: str | None = None, *, tls: ssl.SSLContext | None = None, **headers: str):
        self._address = address
        self._token = token
        self._tls = tls
        self._headers = {"host": address} | UPGRADE | headers
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[ReplyFrame]] = {}
        self._replies = FrameReader(ServerMessage)
        self._reading: asyncio.Task[None] | None = None
        self.head = b""
        self.is_closing = False
        self.pongs = 0
        # The messages with replies, as they arrived.
        self.messages: list[ServerMessage] = []

    async def __aenter__(self) -> Calls:
        await self.connect()
        assert self.status == 101, self.head
        if self._token is not None:
            self.send(ClientMessage(token=self._token))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def connect(self) -> None:
        """Connect and ask for the upgrade; `status` is the answer."""
        host, _, port = self._address.rpartition(":")
        self.reader, self.writer = await asyncio.open_connection(host, int(port), ssl=self._tls)
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in self._headers.items() if value)
        self.writer.write(f"GET /v1/calls HTTP/1.1\r\n{lines}\r\n".encode())
        async with asyncio.timeout(ANSWER_S):
            self.head = await self.reader.readuntil(b"\r\n\r\n")
        if self.status == 101:
            self._reading = asyncio.create_task(self._read())

    async def close(self) -> None:
        """Disconnect."""
        self.writer.transport.abort()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)

    @property
    def status(self) -> int:
        """The status of the answer to the upgrade."""
        return int(self.head.split()[1])

    def send(self, message: ClientMessage) -> None:
        """Send a message."""
        assert self._reading is not None
        if self._reading.done():
            raise ConnectionError("the connection is closed")
        self.writer.write(encode(message))

    def prepare(
        self, method: str, body: bytes = b"", timeout_ms: int = 0, metadata: list[tuple[str, str]] | None = None
    ) -> tuple[CallFrame, asyncio.Future[ReplyFrame]]:
        """A call to send, and the future of its reply."""
        call = CallFrame(next(self._numbers), method, body, timeout_ms, metadata)
        return call, self.expect(call.id)

    def expect(self, call_id: int) -> asyncio.Future[ReplyFrame]:
        """The future of a reply."""
        return self._waiting.setdefault(call_id, asyncio.get_running_loop().create_future())

    async def call(self, method: str, body: bytes = b"", **options: object) -> ReplyFrame:
        """Make a call in a message of its own."""
        call, reply = self.prepare(method, body, **options)  # type: ignore[arg-type]
        self.send(ClientMessage([call]))
        return await self.wait(reply)

    async def wait(self, reply: asyncio.Future[ReplyFrame]) -> ReplyFrame:
        """The reply, however long it takes."""
        async with asyncio.timeout(ANSWER_S):
            return await reply

    async def ended(self) -> None:
        """Wait until the server has closed the connection."""
        assert self._reading is not None
        async with asyncio.timeout(ANSWER_S):
            await asyncio.wait([self._reading])

    async def _read(self) -> None:
        lost = ConnectionError("the connection is closed")
        try:
            while data := await self.reader.read(1 << 16):
                self._replies.feed(data)
                while (message := self._replies.next()) is not None:
                    self._take(message)
        except OSError as error:
            lost = ConnectionError(str(error))
        finally:
            for each in self._waiting.values():
                if not each.done():
                    each.set_exception(lost)
                    each.exception()

    def _take(self, message: ServerMessage) -> None:
        self.is_closing |= message.closing
        self.pongs += not message.replies and not message.closing
        if message.replies:
            self.messages.append(message)
        for reply in message.replies:
            self.expect(reply.id).set_result(reply)


def outcome_of(reply: ReplyFrame) -> tuple[str, str]:
    """The name of a reply's status, and the text of its error."""
    return STATUS_NAMES[reply.status], reply.body.decode() if reply.status else ""


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


class Held:
    """Holds the calls of a method until `release`; `begun` and `cancelled` count them."""

    def __init__(self, server: Server, method: str) -> None:
        self._method = server._methods[method]
        self._function: Any = self._method._function
        self._method._function = self._hold  # type: ignore[assignment]
        self.release = asyncio.Event()
        self.begun = 0
        self.cancelled = 0

    async def _hold(self, request: Message, context: Any) -> Any:
        self.begun += 1
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return await self._function(request, context)
