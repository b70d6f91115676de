"""What a call brought, in a form in which the answers to two callers can be compared."""

from __future__ import annotations

import asyncio
import json
import re
from http import HTTPStatus
from typing import Any

import grpc
from google.protobuf.message import Message

from tape.proto.call_frames import STATUS_NAMES
from tests.access.adversary.requests import METHODS, HttpRequest, is_stream
from tests.access.adversary.world import Names, World, reply_class
from tests.web import Answer, Stream, call

# How long a stream is read: one that goes on, and one that is expected to be refused.
STREAM_S = 0.25
REFUSAL_S = 30.0
# How often a call is made whose answer the client library loses.
CLIENT_TRIES = 5

# Times, sequence numbers and ids that the server makes differ between two callers; how many entries all tenants have
# is public.
_VARYING = re.compile(
    r"\b(\w*(?:_ms|_at|_seq|seq|_seqs|position|head|lag|oldest|_id|ids|sequence|cursor|next|chain|_start|_end|uptime_\w+"
    r"|instance_id|KeyID|examined|date))\"?: (\[[^\]]*\]|\"(?!<o)(?:[^\"\\]|\\.)*\"|-?\d+)"
)
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_DIGEST = re.compile(r"\b(ce-)?[0-9a-f]{64}\b")
_NUMBER = re.compile(r"(?<=not found: )\d+|(?<=catalog_id )\d+|(?<=value: .)\d+|\d{2,}")
_KEY = re.compile(r"\btape_[A-Za-z0-9_-]{20,}")


def normalized(text: str, own: Names, other: Names) -> str:
    """The text with the names of the caller and of its target replaced by their roles, and without what varies."""
    for label, names in (("other", other), ("own", own)):
        for role, value in sorted(names.items(), key=lambda item: -len(str(item[1]))):
            if isinstance(value, str):
                text = text.replace(value, f"<{label} {role}>")
        text = text.replace(prefix_of(names), f"<{label}>")
    text = _VARYING.sub(r"\1: #", text)
    text = _NUMBER.sub("#", _UUID.sub("#", _DIGEST.sub("#", _KEY.sub("#", text))))
    # Things of the same millisecond are listed in the order of their ids.
    status, _, rest = text.partition(" ")
    return f"{status} " + "\n".join(sorted(rest.split("\n")))


def prefix_of(names: Names) -> str:
    """What all client-chosen names of a tenant begin with."""
    return str(names["tenant"]).partition("-")[0]


async def send_rpc(
    world: World,
    method: str,
    request: Message | bytes,
    token: str,
    *,
    read_s: float = STREAM_S,
    in_frames: bool = False,
    **metadata: str,
) -> str:
    """The outcome of an RPC: its error, or its reply as text. Of a stream, what it says at first."""
    described = METHODS[method]
    options = {
        "request_serializer": lambda each: each if isinstance(each, bytes) else each.SerializeToString(),
        "response_deserializer": reply_class(method).FromString,
    }
    path = f"/tape.v1.Tape/{method}"
    sent: list[tuple[str, str]] = [(key.replace("_", "-"), value) for key, value in metadata.items()]
    if token:
        sent.append(("authorization", f"Bearer {token}"))
    if in_frames:
        return await _send_in_frames(world, method, options["request_serializer"](request), sent)
    try:
        if described.client_streaming:
            return await _converse(world.channel.stream_stream(path, **options), request, sent, read_s)
        if described.server_streaming:
            stream = world.channel.unary_stream(path, **options)(request, metadata=sent, timeout=60)
            return await _first(stream, read_s)
        return f"OK {await world.channel.unary_unary(path, **options)(request, metadata=sent, timeout=60)}"
    except grpc.aio.AioRpcError as error:
        trailers = dict(error.trailing_metadata() or ())
        return f"{error.code().name} {error.details()} {trailers.get('tape-error-code', '')}"


async def _send_in_frames(world: World, method: str, body: bytes, metadata: list[tuple[str, str]]) -> str:
    reply = await world.calls.call(method, body, metadata=metadata)
    if reply.status:
        return f"{STATUS_NAMES[reply.status]} {reply.body.decode()} {reply.error_code}"
    return f"OK {reply_class(method).FromString(reply.body)}"


async def _converse(open_call: Any, request: Any, metadata: list[tuple[str, str]], read_s: float) -> str:
    """What a stream in both directions says at first.

    Where the request meets the end of a refused call inside the client library, that reports an error of its own in
    place of the server's; the call is made again then.
    """
    for _ in range(CLIENT_TRIES):
        try:
            return await _first(open_call(_once(request), metadata=metadata, timeout=60), read_s, REFUSAL_S)
        except grpc.aio.AioRpcError as error:
            if error.details() != "Internal error from Core":
                raise
            lost = error
    raise lost


async def _once(request: Any) -> Any:
    yield request


async def _first(stream: Any, read_s: float, first_s: float = 0.0) -> str:
    """The first replies of a stream that goes on; raises the error of one that ends with an error.

    It is read for `read_s` seconds; with `first_s`, which a stream that always replies has, from its first reply on.
    """
    replies: list[str] = []
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(max(first_s, read_s)) as deadline:
            async for reply in stream:
                replies.append(str(reply))
                if first_s and len(replies) == 1:
                    deadline.reschedule(loop.time() + read_s)
    except TimeoutError:
        pass
    finally:
        stream.cancel()
    return "OK " + "\n".join(replies)


async def send_http(world: World, request: HttpRequest, token: str, *, route: str = "") -> str:
    """The outcome of an HTTP request: status and body; of a stream of events, what it says at first."""
    headers = dict(request.headers)
    if token:
        headers["authorization"] = f"Bearer {token}"
    if route and is_stream(route):
        return await _first_frames(world.server.http_address, request, headers)
    answer = await call(world.server.http_address, request.method, request.path, request.body, **headers)
    return f"{HTTPStatus(answer.status).name} {_body(answer)}"


async def _first_frames(address: str, request: HttpRequest, headers: dict[str, str]) -> str:
    stream = Stream(address, request.path, **headers)
    try:
        async with stream, asyncio.timeout(STREAM_S):
            while await stream.frame() is not None:
                pass
    except TimeoutError:
        pass  # it goes on
    except AssertionError:  # it is refused
        stream.close()
    if stream.status != HTTPStatus.OK:
        answer = await call(address, request.method, request.path, **headers)
        return f"{HTTPStatus(answer.status).name} {_body(answer)}"
    return f"OK {stream.raw.decode()}"


def _body(answer: Answer) -> str:
    if answer.headers.get("content-type", "").startswith("application/json") and answer.body:
        return json.dumps(json.loads(answer.body), sort_keys=True)
    return answer.body.decode(errors="replace")
