"""Responses that do not end, read line by line on the event loop: the streaming face of the outgoing HTTP client."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tape.base.addresses import PUBLIC_ONLY, AddressPolicy, open_connection
from tape.base.http import CONNECT_TIMEOUT_S, MAX_HEADER_BYTES, shown
from tape.errors import HttpInterrupted, HttpResponseTooLarge, HttpUnreachable, InvalidHttpRequest

MAX_LINE_BYTES = 16 << 20
MAX_ERROR_BYTES = 4_096
IDLE_TIMEOUT_S = 60.0
READ_BYTES = 65_536


@dataclass
class LineStream:
    """The response to a GET request: its status, its headers with names in lower case, and its lines as they arrive."""

    url: str
    status: int
    headers: Mapping[str, str]
    _reader: asyncio.StreamReader = field(repr=False)
    _idle_timeout_s: float = IDLE_TIMEOUT_S

    async def lines(self) -> AsyncIterator[str]:
        """Yield the lines of the body, without their ends."""
        rest = b""
        while data := await self._read():
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                raise HttpResponseTooLarge(f"A line of the response has more than {MAX_LINE_BYTES} bytes.")
            for line in lines:
                yield line.rstrip(b"\r").decode(errors="replace")

    async def read_text(self) -> str:
        """The first 4 KiB of the body, for the text of an error."""
        length = self.headers.get("content-length", "")
        if length.isdecimal() and not int(length):
            return ""
        return (await self._read())[:MAX_ERROR_BYTES].decode(errors="replace")

    async def _read(self) -> bytes:
        """The next bytes of the body; none at its end."""
        async with _limited(self.url, self._idle_timeout_s):
            if "chunked" not in self.headers.get("transfer-encoding", ""):
                return await self._reader.read(READ_BYTES)
            mark = (await self._reader.readuntil(b"\r\n")).partition(b";")[0]
            size = int(mark, 16)
            if not 0 <= size <= MAX_LINE_BYTES:
                raise HttpResponseTooLarge(f"A chunk of the response has {size} bytes; {MAX_LINE_BYTES} are allowed.")
            return (await self._reader.readexactly(size + 2))[:-2]


@contextlib.asynccontextmanager
async def open_lines(
    url: str,
    headers: Mapping[str, str],
    policy: AddressPolicy = PUBLIC_ONLY,
    *,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    idle_timeout_s: float = IDLE_TIMEOUT_S,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[LineStream]:
    """Send a GET request and read its response for as long as the block lasts; https with `tls` or by default.

    Raises HttpUnreachable before the request was sent, HttpInterrupted when the connection breaks or nothing arrives
    for `idle_timeout_s`, and the other errors of HttpClient.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidHttpRequest(f"{shown(url)!r} must look like http://127.0.0.1:7879.")
    for name, value in headers.items():
        if not f"{name}{value}".isprintable() or not f"{name}{value}".isascii():
            raise InvalidHttpRequest(f"{name} {value!r} cannot be sent as a header; it may have printable ASCII only.")
    context = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
    try:
        async with asyncio.timeout(connect_timeout_s):
            port = parts.port or (443 if context else 80)
            reader, writer = await open_connection(parts.hostname, port, policy, tls=context, limit=MAX_HEADER_BYTES)
    except OSError as error:  # TimeoutError is one
        raise HttpUnreachable(f"{shown(url)} cannot be reached: {str(error) or type(error).__name__}.") from error
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = [f"GET {target} HTTP/1.1", f"host: {parts.netloc.rpartition('@')[2]}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        async with _limited(url, idle_timeout_s):
            status, fields = await _read_head(reader)
        yield LineStream(url, status, fields, reader, idle_timeout_s)
    finally:
        writer.close()


@contextlib.asynccontextmanager
async def _limited(url: str, timeout_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except asyncio.LimitOverrunError as error:
        raise HttpResponseTooLarge(f"A line of the response of {shown(url)} is too long: {error}.") from error
    except (OSError, asyncio.IncompleteReadError, ValueError) as error:  # TimeoutError is an OSError
        raise HttpInterrupted(f"{shown(url)} ended the response: {str(error) or type(error).__name__}.") from error


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += await reader.readuntil(b"\r\n")
        if len(head) > MAX_HEADER_BYTES:
            raise HttpResponseTooLarge(f"The response has more than {MAX_HEADER_BYTES} bytes of headers.")
    status, *lines = head.decode("latin-1").split("\r\n")
    if not status.startswith("HTTP/1.") or not status[9:12].isdecimal():
        raise ValueError(f"{status[:80]!r} is no status line of HTTP/1.1")
    pairs = (line.partition(":") for line in lines if line)
    return int(status[9:12]), {name.strip().lower(): value.strip() for name, _, value in pairs}
