"""Requests that are well-formed on the wire and nonsense inside: a clear refusal, never INTERNAL, UNKNOWN or 500."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tape.proto import tape_pb2 as pb
from tape.server.server import Server
from tests.conftest import settings_for
from tests.web import call

METHODS = pb.DESCRIPTOR.services_by_name["Tape"].methods
TEXTS = [
    "a\0b",
    "x" * 70_000,
    "\U0010ffff",
    "[1,",
    "[" * 300,
    "1e999",
    '"\\ud800"',
    '{"a":"\\u0000"}',
    '{"\\ud800":1}',
    '{"a":' + "9" * 400 + "}",
    "../../etc",
    "~x/y",
    "/tape/order/created/%",
    "null",
]
INTEGERS = [-1, -(1 << 63), (1 << 63) - 1, -(1 << 31), (1 << 31) - 1]
VALUES: dict[int, list[Any]] = {
    FieldDescriptor.TYPE_STRING: TEXTS,
    FieldDescriptor.TYPE_BYTES: [b"\0", b"\xff" * 10],
    FieldDescriptor.TYPE_INT64: INTEGERS,
    FieldDescriptor.TYPE_INT32: INTEGERS[3:],
    FieldDescriptor.TYPE_DOUBLE: [float("nan"), float("inf"), -1.0],
    FieldDescriptor.TYPE_ENUM: [-1, 99],
}
DEFECTS = {"INTERNAL", "UNKNOWN", "DATA_LOSS"}


@pytest.fixture
async def server(store_url: str) -> AsyncIterator[Server]:
    async with Server(settings_for(store_url)) as server:
        yield server


def plausible(kind: type[Message]) -> Any:
    """A message whose texts are set to something that is often valid."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if field.type == field.TYPE_STRING and not field.is_repeated:
            is_subject = "subject" in field.name
            setattr(message, field.name, "{}" if field.name.endswith("_json") else "/tape/a/b" if is_subject else "x")
    return message


def spoiled(kind: type[Message], depth: int = 0) -> Iterator[Any]:
    """Plausible messages with one value that is not, in every field and every message inside."""
    yield kind()
    yield plausible(kind)
    for field in kind.DESCRIPTOR.fields:
        is_message = field.type == field.TYPE_MESSAGE
        if is_message and field.message_type.GetOptions().map_entry:
            for text in TEXTS[:3]:
                message = plausible(kind)
                if field.message_type.fields_by_name["value"].type == field.TYPE_STRING:
                    getattr(message, field.name)[text] = text
                yield message
            continue
        values = VALUES.get(field.type, [])
        if is_message and depth < 2:
            values = list(spoiled(GetMessageClass(field.message_type), depth + 1))
        for value in values:
            message = plausible(kind)
            if field.is_repeated:
                getattr(message, field.name).append(value)
            elif is_message:
                getattr(message, field.name).CopyFrom(value)
            else:
                setattr(message, field.name, value)
            yield message


async def send(channel: grpc.aio.Channel, method: Any, request: Any) -> tuple[str, str]:
    """The status of a call and its details; streams are read for a moment."""
    path, data = f"/tape.v1.Tape/{method.name}", request.SerializeToString()
    try:
        if method.client_streaming:
            async for _ in channel.stream_stream(path)(iter([data]), timeout=0.3):
                pass
        elif method.server_streaming:
            async for _ in channel.unary_stream(path)(data, timeout=0.3):
                pass
        else:
            await channel.unary_unary(path)(data, timeout=60)
    except grpc.aio.AioRpcError as error:
        return error.code().name, error.details() or ""
    return "OK", ""


async def test_no_value_of_a_field_is_an_internal_error(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    slots = asyncio.Semaphore(20)
    async with grpc.aio.insecure_channel(server.grpc_address) as channel:

        async def defect_of(method: Any, request: Any) -> str:
            async with slots:
                status, details = await send(channel, method, request)
            return f"{method.name} {status} {details}: {str(request)[:300]}" if status in DEFECTS else ""

        calls = [
            defect_of(method, request) for method in METHODS for request in spoiled(GetMessageClass(method.input_type))
        ]
        found = await asyncio.gather(*calls)
    assert [defect for defect in found if defect] == []
    assert [record for record in caplog.records if record.exc_info] == []


async def test_a_nul_is_refused_with_the_name_of_its_field_and_fails_no_other_call(server: Server) -> None:
    methods = {method.name: method for method in METHODS}
    async with grpc.aio.insecure_channel(server.grpc_address) as channel:
        spoiled_move = pb.AdvanceRunsRequest(moves=[pb.AdvanceRunRequest(run_id="a\0b")])
        moves = [pb.AdvanceRunsRequest(moves=[pb.AdvanceRunRequest(run_id=f"r{number}")]) for number in range(50)]
        answers = await asyncio.gather(
            *(send(channel, methods["AdvanceRuns"], move) for move in [*moves[:25], spoiled_move, *moves[25:]])
        )
    assert answers.pop(25) == (
        "INVALID_ARGUMENT",
        "the request of AdvanceRuns has a NUL character in moves.run_id, which a database cannot store.",
    )
    assert {status for status, _ in answers} == {"OK"}


async def test_a_worker_may_report_an_error_with_a_nul(server: Server) -> None:
    request = pb.NackTaskRequest(task_id="x", owner="w", error="a\0b")
    async with grpc.aio.insecure_channel(server.grpc_address) as channel:
        status, _ = await send(channel, next(method for method in METHODS if method.name == "NackTask"), request)
    assert status == "NOT_FOUND"


async def test_a_lease_of_more_than_24_hours_is_refused(server: Server) -> None:
    request = pb.BeginRunRequest(app_name="a", lease_owner="w", lease_ttl_ms=(1 << 63) - 1)
    async with grpc.aio.insecure_channel(server.grpc_address) as channel:
        method = next(method for method in METHODS if method.name == "BeginRun")
        status, details = await send(channel, method, request)
    assert status == "INVALID_ARGUMENT"
    assert "a lease of 9223372036854775807 ms is too long" in details


BODIES = [
    b"\xff\xfe{}",
    b'{"a": "\xc3\x28"}',
    b"{",
    b"[" * 500,
    b"null",
    b"[]",
    b'"x"',
    b"1e999",
    b'{"\\ud800": "\\ud800"}',
    b'{"type": "a\\u0000b", "subject": "\\u0000", "path": "\\u0000", "content": "\\u0000", "alias": "\\u0000"}',
    b'{"limit": 99999999999999999999999, "cursor": -1, "path": [], "content": {}, "payload": 1, "events": 3}',
    b'{"path": "x", "content": "\xf0\x9f\x98\x80", "version": 9223372036854775807}',
]
PARAMETERS = ["%00", "%ff%fe", "..%2f..%2fx", "x" * 2_000, "-1", "99999999999999999999", "%F0%9F%98%80"]


def routes_of(document: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (method.upper(), path)
        for path, operations in document["paths"].items()
        for method in operations
        if method in ("get", "post", "put", "patch", "delete")
    ]


async def test_no_body_and_no_parameter_of_a_route_is_an_internal_error(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    routes = routes_of((await call(server.http_address, "GET", "/v1/openapi.json")).json())
    assert len(routes) > 20
    defects = []
    for method, template in routes:
        if (method, template) == ("GET", "/v1/events"):
            continue  # a stream, which does not end; its parameters are tested beside it
        for parameter in PARAMETERS:
            path = re.sub(r"\{[^}]*\}", parameter, template)
            bodies = BODIES if method != "GET" and parameter == PARAMETERS[0] else [b"", b"{}"]
            for body in bodies:
                query = f"?limit={parameter}&cursor={parameter}&tenant={parameter}"
                async with asyncio.timeout(60):
                    answer = await call(
                        server.http_address, method, path + query, body, content_type="application/json"
                    )
                if answer.status >= 500 and answer.status != 503:
                    defects.append(f"{answer.status} {method} {path[:100]} {body[:60]!r}: {answer.body[:200]!r}")
    assert defects == []
    assert [record for record in caplog.records if record.exc_info and record.levelno >= logging.ERROR] == []
