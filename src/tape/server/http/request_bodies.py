"""Bodies of requests: read within a limit, decoded strictly."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from tape.base import structs
from tape.errors import InvalidRequest, RequestTooLarge
from tape.model.json_depth import check_depth
from tape.server.admission import TICKET, Ticket

T = TypeVar("T")

_TIME = re.compile(r"(\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body. Raises RequestTooLarge as soon as it exceeds the limit."""
    body = bytearray()
    ticket: Ticket | None = request.scope.get(TICKET)
    is_announced = "content-length" in request.headers
    try:
        async for chunk in request.stream():
            body += chunk
            if ticket is not None and not is_announced:
                ticket.grow(len(chunk))
            if len(body) > limit:
                raise RequestTooLarge(f"the request body has more than {limit} bytes, the limit of this route.")
    except ClientDisconnect as error:
        raise InvalidRequest("the client disconnected before the end of the body.") from error
    if ticket is not None:
        await ticket.turn()  # a slow sender has no slot while it sends
    return bytes(body)


async def read_json(request: Request, kind: type[T], limit: int) -> T:
    """A JSON body as a struct; unknown keys are rejected, an empty body is an empty object."""
    try:
        body = await read_body(request, limit)
    except RequestTooLarge as error:
        raise InvalidRequest(f"failed to read request body: {error}") from error
    check_depth(body)
    try:
        return structs.decode(body or b"{}", kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"failed to decode request body: {error}") from error


def parse_time(name: str, text: str) -> int:
    """Nanoseconds since 1970 of an RFC 3339 time."""
    match = _TIME.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        whole = datetime.fromisoformat(match[1].upper() + match[3].upper().replace("Z", "+00:00"))
        seconds = (whole - _EPOCH).total_seconds()
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(f"{name} {text!r} is not a time like 2026-06-10T23:03:22Z.") from error
    return int(seconds) * 1_000_000_000 + int((match[2] or "0").ljust(9, "0"))


def to_time(ns: int) -> str:
    """A time in UTC, without trailing zeros."""
    seconds, fraction = divmod(ns, 1_000_000_000)
    whole = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{whole}.{fraction:09d}".rstrip("0").rstrip(".") + "Z"
