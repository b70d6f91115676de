"""A plain HTTP client for tests: what was sent on the wire, byte for byte."""

from __future__ import annotations

import asyncio
import json
import ssl
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Answer:
    """One response, read to its end."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Frame:
    """One frame of a stream; a comment has only a text."""

    event: str = ""
    id: int | None = None
    data: dict[str, Any] = field(default_factory=dict)
    comment: str = ""
    raw: bytes = b""


async def call(
    address: str, method: str, path: str, body: bytes | Any = b"", *, tls: ssl.SSLContext | None = None, **headers: str
) -> Answer:
    """Send a request and read the whole answer. Header names are written with underscores."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
        headers.setdefault("content_type", "application/json")
    reader, writer = await _send(address, method, path, body, headers, tls=tls)
    try:
        status, answered = await _head(reader)
        if answered.get("transfer-encoding") == "chunked":
            content = b"".join([chunk async for chunk in _chunks(reader)])
        elif method == "HEAD" or status == 204:
            content = b""
        else:
            content = await reader.readexactly(int(answered["content-length"]))
        return Answer(status, answered, content)
    finally:
        writer.close()


class Stream:
    """An open stream of events. Use as an async context manager."""

    def __init__(
        self,
        address: str,
        path: str = "/v1/events",
        *,
        limit: int = 1 << 22,
        tls: ssl.SSLContext | None = None,
        **headers: str,
    ) -> None:
        self._request = (address, "GET", path, b"", headers)
        self._tls = tls
        self._limit = limit
        self.status = 0
        self.headers: dict[str, str] = {}
        self.raw = b""
        self._buffer = b""

    async def __aenter__(self) -> Stream:
        self._reader, self._writer = await _send(*self._request, limit=self._limit, tls=self._tls)
        self.status, self.headers = await _head(self._reader)
        assert self.status == 200, await self._reader.read(int(self.headers.get("content-length", "1000")))
        self._chunks = _chunks(self._reader)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._writer.close()

    def pause_reading(self) -> None:
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def resume_reading(self) -> None:
        self._writer.transport.resume_reading()  # type: ignore[attr-defined]

    async def frame(self) -> Frame | None:
        """The next frame, or None at the end of the stream."""
        async with asyncio.timeout(120):
            while b"\n\n" not in self._buffer:
                try:
                    chunk = await anext(self._chunks)
                except StopAsyncIteration:
                    return None
                self._buffer += chunk
                self.raw += chunk
        raw, _, self._buffer = self._buffer.partition(b"\n\n")
        return parse(raw)

    async def frames(self, count: int) -> list[Frame]:
        """The next frames, the first `retry` not counted."""
        found: list[Frame] = []
        while len(found) < count:
            frame = await self.frame()
            assert frame is not None, f"the stream ended after {found}"
            if not frame.raw.startswith(b"retry:"):
                found.append(frame)
        return found

    async def ids(self, count: int) -> list[int | None]:
        return [frame.id for frame in await self.frames(count)]

    async def until(self, event: str) -> list[Frame]:
        """All frames up to the first of a type."""
        found = []
        while True:
            frame = await self.frame()
            assert frame is not None, f"the stream ended without {event}: {found[-3:]}"
            found.append(frame)
            if frame.event == event:
                return found


def parse(raw: bytes) -> Frame:
    frame = Frame(raw=raw)
    for line in raw.decode().split("\n"):
        name, _, value = line.partition(": ")
        if name == "":
            frame.comment = value
        elif name == "id":
            frame.id = int(value)
        elif name == "event":
            frame.event = value
        elif name == "data":
            frame.data = json.loads(value)
    return frame


async def _send(
    address: str,
    method: str,
    path: str,
    body: bytes,
    headers: dict[str, str],
    limit: int = 1 << 22,
    tls: ssl.SSLContext | None = None,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=limit, ssl=tls)
    lines = [f"{method} {path} HTTP/1.1"]
    sent = {"host": address} | {name.replace("_", "-"): value for name, value in headers.items()}
    lines += [f"{name}: {value}" for name, values in sent.items() for value in values.split("\n")]
    if body or method == "POST":
        lines.append(f"content-length: {len(body)}")
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
    return reader, writer


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    async with asyncio.timeout(120):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = dict(line.split(": ", 1) for line in head[1:] if line)
    return int(head[0].split()[1]), {name.lower(): value for name, value in headers.items()}


async def _chunks(reader: asyncio.StreamReader) -> Any:
    while True:
        size = int((await reader.readuntil(b"\r\n"))[:-2], 16)
        data = await reader.readexactly(size + 2)
        if size == 0:
            return
        yield data[:-2]
