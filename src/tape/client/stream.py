"""The journal over HTTP, as a client should read it: resume after the last id, and say what was missed."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec

from tape.errors import HttpFailed, InvalidConfig, ServerUnreachable

log = logging.getLogger(__name__)

FIRST_RECONNECT_S = 0.1
LINE_LIMIT = 16 << 20
CONNECT_S = 10.0
# The server gives a sign of life every fifteen seconds unless it is told otherwise.
SILENCE_S = 60.0
_WORTH_WAITING = frozenset({429, 502, 503, 504})


class Event(msgspec.Struct, frozen=True):
    """One event of a stream; `sequence` is its place in the journal."""

    type: str
    sequence: int
    occurred_at: str
    tenant: str = ""
    user: str = ""
    session: str = ""
    run: str = ""
    payload: Any = None
    extra: dict[str, str] = {}


class Gap(msgspec.Struct, frozen=True):
    """Something this stream should have had and has not: take a new snapshot of what you keep, then go on.

    `first`, `last` and `count` are known for entries that were dropped because they were read too slowly; these are
    still on the journal.
    """

    reason: str
    first: int = 0
    last: int = 0
    count: int = 0


OnGap = Callable[[Gap], Awaitable[None] | None]


async def stream(
    url: str,
    *,
    after: int | None = None,
    types: Sequence[str] = (),
    run: str = "",
    tenant: str = "",
    user: str = "",
    session: str = "",
    admin: bool = False,
    token: str = "",
    on_gap: OnGap | None = None,
    reconnect: bool = True,
) -> AsyncIterator[Event]:
    """Events as they happen, each once and in order, without end.

    `after` is the sequence to begin after: 0 is the oldest entry, None is from now on. When the connection is lost,
    the stream resumes after the last event. `on_gap` is called where something is missing. The token comes from
    TAPE_TOKEN unless it is given; tenant and user are for servers without tokens.
    """
    names = {"x-harbor-tenant": tenant, "x-harbor-user": user, "x-harbor-session": session, "x-harbor-run": run}
    headers = {name: value for name, value in names.items() if value}
    if types:
        headers["x-harbor-event-type"] = ",".join(types)
    if token := token or os.environ.get("TAPE_TOKEN", ""):
        headers["authorization"] = f"Bearer {token}"
    target = _Target(url, admin=admin)
    position, first, pause = after, True, FIRST_RECONNECT_S
    while True:
        resume = {} if position is None else {"last-event-id": str(position)}
        try:
            async for frame in target.frames(headers | resume):
                first, pause = False, FIRST_RECONNECT_S
                if frame.id is not None:
                    position = frame.id
                if (gap := frame.gap()) is not None:
                    await _tell(gap, on_gap)
                elif frame.is_event:
                    yield msgspec.json.decode(frame.data, type=Event)
            reason = "the server ended the stream"
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            if first:
                raise ServerUnreachable(
                    f"No Tape server answers at {url} ({error}). Is it running? Start one with: tape serve"
                ) from error
            reason = str(error) or type(error).__name__
        except _TryLater as error:
            if first or not reconnect:
                raise HttpFailed(str(error)) from error
            reason = str(error)
        if not reconnect:
            return
        log.info("the stream was lost, resuming after %s: %s", position, reason)
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
        pause = min(pause * 2, target.retry_s)


async def _tell(gap: Gap, on_gap: OnGap | None) -> None:
    log.warning("the stream has a gap: %s", gap)
    if on_gap is not None:
        done = on_gap(gap)
        if inspect.isawaitable(done):
            await done


class _TryLater(Exception):
    """The server refused for now."""


class _Frame(msgspec.Struct):
    event: str = ""
    data: str = ""
    id: int | None = None
    comment: str = ""

    @property
    def is_event(self) -> bool:
        """Whether it is an entry of the journal: notices have no id, a checkpoint has nothing else."""
        return bool(self.data) and self.id is not None and self.event != "checkpoint"

    def gap(self) -> Gap | None:
        """What is missing, if the frame says so."""
        if self.comment.startswith("stream.replay_unavailable"):
            return Gap(self.comment.partition(" ")[2])
        if self.event != "bus.dropped":
            return None
        lost = msgspec.json.decode(self.data)["payload"]
        return Gap("this stream was read too slowly", lost["FromSeq"], lost["ToSeq"], lost["DroppedCount"])


class _Target:
    """Where the stream is, and how to read frames from it."""

    def __init__(self, url: str, *, admin: bool) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidConfig(f"The server URL {url!r} must look like http://127.0.0.1:7879.")
        self._secure = parts.scheme == "https"
        self._host = parts.hostname
        self._port = parts.port or (443 if self._secure else 80)
        self._name = parts.netloc.rpartition("@")[2]
        self._path = parts.path.rstrip("/") + "/v1/events" + (f"?{urlencode({'admin': 1})}" if admin else "")
        self.retry_s = 3.0

    async def frames(self, headers: dict[str, str]) -> AsyncIterator[_Frame]:
        """The frames of one connection."""
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(
                self._host, self._port, ssl=self._secure or None, limit=LINE_LIMIT
            )
        try:
            lines = [f"GET {self._path} HTTP/1.1", f"host: {self._name}", "accept: text/event-stream"]
            lines += [f"{name}: {_clean(name, value)}" for name, value in headers.items()]
            writer.write("\r\n".join([*lines, "", ""]).encode())
            answered = await self._answered(reader)
            frame = _Frame()
            async for line in _lines(reader, is_chunked="chunked" in answered.get("transfer-encoding", "")):
                if line:
                    self._take(frame, line)
                else:
                    yield frame
                    frame = _Frame()
        finally:
            writer.close()

    async def _answered(self, reader: asyncio.StreamReader) -> dict[str, str]:
        async with asyncio.timeout(SILENCE_S):
            status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            pairs = (line.partition(":") for line in lines if line)
            headers = {name.lower(): value.strip() for name, _, value in pairs}
            code = int(status.split()[1])
            if code == 200:
                return headers
            body = (await reader.read(int(headers.get("content-length", 4096)))).decode(errors="replace")
        message = f"The server answered {code}: {body}"
        raise _TryLater(message) if code in _WORTH_WAITING else HttpFailed(message)

    def _take(self, frame: _Frame, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "":
                frame.comment = value
            case "event":
                frame.event = value
            case "data":
                frame.data += f"\n{value}" if frame.data else value
            case "id" if value.isdecimal():
                frame.id = int(value)
            case "retry" if value.isdecimal():
                self.retry_s = int(value) / 1000


async def _lines(reader: asyncio.StreamReader, *, is_chunked: bool) -> AsyncIterator[str]:
    """The lines of a body."""
    rest = b""
    while True:
        async with asyncio.timeout(SILENCE_S):
            if is_chunked:
                size = int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16)
                data = (await reader.readexactly(size + 2))[:-2]
            else:
                data = await reader.read(65_536)
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line.rstrip(b"\r").decode()


def _clean(name: str, value: str) -> str:
    if not value.isprintable() or not value.isascii():
        raise InvalidConfig(f"{name} {value!r} cannot be sent as a header; it may have printable ASCII only.")
    return value
