"""Reads the journal over HTTP server-sent events: resumes after the last id and reports gaps."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit

import msgspec

from tape.base.addresses import OPERATOR
from tape.base.http_stream import open_lines
from tape.base.retry import RECONNECT, Backoff
from tape.base.tls import load_client_tls, remedy_for
from tape.base.url_mask import mask_urls
from tape.client.gap import Gap, OnGap, report_gap
from tape.errors import HttpFailed, HttpRequestFailed, InvalidConfig, InvalidHttpRequest, ServerUnreachable

log = logging.getLogger(__name__)

_RETRYABLE = frozenset({429, 502, 503, 504})
# The server ends the stream after this comment and has left nothing out: the next connection goes on.
FAILED = "stream.replay_unavailable replay failed"


class Event(msgspec.Struct, frozen=True):
    """One event of a stream; `sequence` is its position in the journal."""

    type: str
    sequence: int
    occurred_at: str
    tenant: str = ""
    user: str = ""
    session: str = ""
    run: str = ""
    payload: Any = None
    extra: dict[str, str] = {}


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
    position, first, backoff = after, True, Backoff(RECONNECT)
    while True:
        resume = {} if position is None else {"last-event-id": str(position)}
        try:
            async for frame in target.frames(headers | resume):
                first = False
                backoff.reset()
                if frame.id is not None:
                    position = frame.id
                if frame.comment == FAILED:
                    log.warning("the server could not read its journal; the stream resumes after %s", position)
                elif (gap := frame.gap()) is not None:
                    await report_gap(gap, on_gap)
                elif frame.is_event:
                    yield msgspec.json.decode(frame.data, type=Event)
            reason = "the server ended the stream"
        except HttpRequestFailed as error:
            if first:
                remedy = remedy_for(str(error), is_secure=target.is_secure)
                remedy = remedy or " Is it running? Start one with: tape serve"
                raise ServerUnreachable(f"No Tape server answers at {mask_urls(url)} ({error}).{remedy}") from error
            reason = str(error)
        except InvalidHttpRequest as error:
            raise InvalidConfig(str(error)) from error
        except _TryLater as error:
            if first or not reconnect:
                raise HttpFailed(str(error)) from error
            reason = str(error)
        if not reconnect:
            return
        log.info("the stream was lost, resuming after %s: %s", position, reason)
        backoff.policy = replace(RECONNECT, max_interval_s=target.retry_s)  # as the server's `retry:` field asks
        await backoff.wait_async()


class _TryLater(Exception):
    """The server rejected the request with a retryable status."""


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
        if self.comment.startswith("stream.replay_unavailable") and self.comment != FAILED:
            return Gap(self.comment.partition(" ")[2])
        if self.event not in ("bus.dropped", "bus.gap") or self.id is not None:  # with an id it is an entry, no notice
            return None
        lost = msgspec.json.decode(self.data)["payload"]
        if self.event == "bus.gap":
            first, last = lost["FromSeq"], lost["ToSeq"]
            return Gap(lost["Reason"], first, last, last - first + 1, lost["Detail"])
        return Gap("this stream was read too slowly", lost["FromSeq"], lost["ToSeq"], lost["DroppedCount"])


class _Target:
    """Where the stream is, and how to read frames from it."""

    def __init__(self, url: str, *, admin: bool) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidConfig(f"The server URL {mask_urls(url)!r} must look like http://127.0.0.1:7879.")
        path = parts.path.rstrip("/") + "/v1/events"
        self._url = urlunsplit((parts.scheme, parts.netloc, path, urlencode({"admin": 1}) if admin else "", ""))
        self.is_secure = parts.scheme == "https"
        self._tls = load_client_tls().context() if self.is_secure else None
        self.retry_s = 3.0

    async def frames(self, headers: dict[str, str]) -> AsyncIterator[_Frame]:
        """The frames of one connection."""
        wanted = {"accept": "text/event-stream", **headers}
        async with open_lines(self._url, wanted, OPERATOR, tls=self._tls) as response:
            if response.status != 200:
                message = f"The server answered {response.status}: {await response.read_text()}"
                raise _TryLater(message) if response.status in _RETRYABLE else HttpFailed(message)
            frame = _Frame()
            async for line in response.lines():
                if line:
                    self._take(frame, line)
                else:
                    yield frame
                    frame = _Frame()

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
