"""Every field of every RPC and route with hostile values: the caller gets its own mistake, the log no traceback."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Iterable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tests.access.adversary.outcomes import send_http, send_rpc
from tests.access.adversary.requests import (
    METHODS,
    OWN,
    ROUTES,
    HttpRequest,
    by_rpc,
    described,
    leaves,
    message,
    request,
)
from tests.access.adversary.world import World

pytestmark = pytest.mark.asyncio(loop_scope="package")

# What a caller never gets for its own mistake.
FAILURES = ("INTERNAL", "UNKNOWN", "DATA_LOSS", "DEADLINE", "UNIMPLEMENTED", "BAD_GATEWAY", "UNAVAILABLE", "NOT_IMPL")
AT_ONCE = 8

TEXTS = (
    "",
    "\0",
    "a\0b",
    "x" * 70_000,
    "../../../etc/passwd",
    "~zqname-tenant/zqname/playbook",
    "'; DROP TABLE tape_runs; --",
    "\u202e\ufeff\U0010ffff",
    "NaN",
    "1e999",
    "[" * 20_000,
    '{"a":' * 5_000 + "1" + "}" * 5_000,
    "9" * 5_000,
    "/tape/**/**/**/a",
    "%s%n{0}{{}}${jndi:x}",
)
INT64 = (-1, (1 << 63) - 1, -(1 << 63))
INT32 = (-1, (1 << 31) - 1, -(1 << 31))
FLOATS = (math.nan, math.inf, -math.inf, -1.0, 1e308)
HOSTILE: dict[int, tuple[Any, ...]] = {
    FieldDescriptor.CPPTYPE_STRING: TEXTS,
    FieldDescriptor.CPPTYPE_INT64: INT64,
    FieldDescriptor.CPPTYPE_INT32: INT32,
    FieldDescriptor.CPPTYPE_UINT32: (1, (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_UINT64: (1, (1 << 64) - 1),
    FieldDescriptor.CPPTYPE_DOUBLE: FLOATS,
    FieldDescriptor.CPPTYPE_ENUM: (99, -1, (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_BOOL: (True, False),
}
# No valid message of any kind: a field number of 0, a length beyond the end, a text that is not UTF-8, a group.
GARBAGE = (
    b"\x00",
    b"\x0a\xff",
    b"\x0a\x02\xff\xfe",
    b"\xff" * 64,
    b"\x0b",
    b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
)


@by_rpc
async def test_an_rpc_with_hostile_fields_fails_with_the_callers_mistake(
    world: World, method: str, in_frames: bool
) -> None:
    token = world.control.all_scopes
    await _check(
        world,
        (
            (label, send_rpc(world, method, each, token, in_frames=in_frames))
            for label, each in _hostile_messages(world, method)
        ),
    )


def _hostile_messages(world: World, method: str) -> Iterator[tuple[str, Message | bytes]]:
    names = world.control.names
    base = message(METHODS[method].input_type, OWN.pick(names, names))
    for path, field in leaves(METHODS[method].input_type):
        if field.message_type is not None:
            continue  # a map of labels
        for value in HOSTILE[field.cpp_type]:
            changed = type(base)()
            changed.CopyFrom(base)
            _set(changed, path, field, value)
            yield f"{'.'.join(path)} = {str(value)[:40]!r}", changed
        if field.is_repeated:
            changed = type(base)()
            changed.CopyFrom(base)
            _set(changed, path, field, *[HOSTILE[field.cpp_type][3]] * 20)
            yield f"{'.'.join(path)}: 20 long values", changed
    yield "empty", b""
    for garbage in GARBAGE:
        yield f"garbage {garbage[:8]!r}", garbage
    yield "cut", base.SerializeToString()[:-1]


def _set(built: Any, path: tuple[str, ...], field: FieldDescriptor, *values: Any) -> None:
    for name in path[:-1]:
        inner = getattr(built, name)
        built = inner if isinstance(inner, Message) else (inner[0] if inner else inner.add())
    if field.is_repeated:
        getattr(built, path[-1])[:] = values
    else:
        setattr(built, path[-1], values[0])


# In JSON, values that are no text of the type that a field has.
VALUES: tuple[Any, ...] = (
    *(text for text in TEXTS if len(text) < 100_000),
    *(None, True, 0, -1, 1.5, 1 << 70, [], {}, [[]], {"a": {"b": [None]}}),
)
# Written into the body as they are: what json.dumps does not make.
RAW = (b"NaN", b"1e999", b"-0", b'"\\ud800"', b'"\xff"', b"[" * 50_000, b"1" * 10_000, b'{"a":1,"a":2}')
BODIES = (b"", b"null", b"[]", b"1", b'""', b"{", b"\xff\xfe", b"[" * 200_000, b'{"":' * 50_000, b"{}" * 3, b"\x00")
PARAMETERS = ("", "%00", "..%2f..%2fetc", "~zqname-tenant%2fx", "%ff%fe", "x" * 9_000, "NaN", "-1", "9" * 30, "a&b=c#d")


@pytest.mark.parametrize("route", ROUTES)
async def test_a_route_with_hostile_fields_answers_with_the_callers_mistake(world: World, route: str) -> None:
    token = world.control.all_scopes
    await _check(
        world,
        ((label, send_http(world, each, token, route=route)) for label, each in _hostile_requests(world, route)),
    )


def _hostile_requests(world: World, route: str) -> Iterator[tuple[str, HttpRequest]]:
    names = world.control.names
    pick = OWN.pick(names, names)
    method, path, operation = described(route)
    base = request(route, pick)
    for parameter in operation.get("parameters", ()):
        for value in PARAMETERS:
            changed = request(route, pick)
            name = parameter["name"]
            if parameter["in"] == "path":
                changed.path = (
                    path.replace(f"{{{name}}}", value).replace("{action}", "pause").replace("{", "").replace("}", "")
                )
            elif parameter["in"] == "query":
                changed.path += f"{'&' if '?' in changed.path else '?'}{name}={value}"
            else:
                changed.headers[name.lower().replace("-", "_")] = quote(value, safe="")
            yield f"{name} = {value[:40]!r}", changed
    if method == "POST":
        for body in BODIES:
            yield f"body {body[:20]!r}", HttpRequest(method, base.path, base.headers, body)
        for media in ("", "text/plain", "application/json; charset=utf-16", "a/b", "\x7f"):
            yield (
                f"content-type {media!r}",
                HttpRequest(method, base.path, base.headers | {"content_type": media}, base.body),
            )
        if base.headers.get("content_type", "").endswith("json"):
            for label, body in _hostile_bodies(json.loads(base.body)):
                yield label, HttpRequest(method, base.path, base.headers, body)


def _hostile_bodies(body: Any) -> Iterator[tuple[str, bytes]]:
    for path in _paths(body):
        for value in VALUES:
            yield f"{path} = {str(value)[:40]!r}", json.dumps(_changed(body, path, value)).encode()
        for raw in RAW:
            text = json.dumps(_changed(body, path, "@raw@")).encode()
            yield f"{path} = {raw[:20]!r}", text.replace(b'"@raw@"', raw)


def _paths(value: Any, above: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if above:
        yield above
    items: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        yield from _paths(inner, (*above, key))


def _changed(body: Any, path: tuple[str | int, ...], value: Any) -> Any:
    copied = json.loads(json.dumps(body))
    target = copied
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return copied


async def _check(world: World, calls: Iterable[tuple[str, Awaitable[str]]]) -> None:
    problems: list[str] = []
    slots = asyncio.Semaphore(AT_ONCE)

    async def check(label: str, sending: Awaitable[str]) -> None:
        async with slots:
            outcome = await sending
        if outcome.startswith(FAILURES):
            problems.append(f"{label}: {outcome[:300]}")

    world.log.take()
    await asyncio.gather(*(check(*each) for each in calls))
    assert not problems, "\n".join(problems[:20])
    assert not (logged := world.log.take()), "\n".join(logged[:5])
