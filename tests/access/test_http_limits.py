"""What a client may send over HTTP before it is authenticated."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tape.base.config import Settings
from tape.server.gateway import Gateway
from tape.server.http.protocol import HttpConnection, HttpLimits
from tape.server.server import Server
from tests.conftest import settings_for
from tests.web import Stream, call

HEAD = b"POST /v1/events/list HTTP/1.1\r\nhost: localhost\r\n"


def resident_bytes() -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


@contextlib.asynccontextmanager
async def connected(address: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()


async def status_of(reader: asyncio.StreamReader) -> int:
    """The status of the answer; the connection must be closed after it."""
    async with asyncio.timeout(60):
        line = await reader.readline()
        with contextlib.suppress(ConnectionError):
            await reader.read()
    return int(line.split()[1])


async def exchange(address: str, request: bytes) -> int:
    async with connected(address) as (reader, writer):
        writer.write(request)
        return await status_of(reader)


@pytest.fixture
async def server(sqlite_url: str) -> AsyncIterator[Server]:
    async with Server(settings_for(sqlite_url)) as server:
        yield server


def test_the_settings_have_the_defaults_of_the_protocol() -> None:
    settings = Settings()
    assert (
        HttpConnection.limits == HttpLimits() == tuple(getattr(settings, f"http_{name}") for name in HttpLimits._fields)
    )


@pytest.mark.parametrize(
    "headers",
    [
        b"a: " + b"x" * 70_000 + b"\r\n",
        b"".join(b"a%d: %s\r\n" % (n, b"x" * 100) for n in range(700)),
        b"a: b\r\n" * 12_000,
    ],
    ids=["one", "many", "short"],
)
async def test_headers_beyond_64_kib_are_answered_with_431(server: Server, headers: bytes) -> None:
    assert await exchange(server.http_address, HEAD + headers + b"\r\n") == 431
    assert (await call(server.http_address, "GET", "/healthz")).status == 200


async def test_headers_of_60_kib_in_small_pieces_are_accepted(server: Server) -> None:
    async with connected(server.http_address) as (reader, writer):
        writer.write(b"GET /healthz HTTP/1.1\r\nconnection: close\r\n")
        for n in range(60):
            writer.write(b"a%d: %s\r\n" % (n, b"x" * 1_010))
            await writer.drain()
        writer.write(b"\r\n")
        assert await status_of(reader) == 200


async def test_a_url_beyond_16_kib_is_answered_with_414(server: Server) -> None:
    assert (
        await exchange(server.http_address, b"GET /" + b"x" * 17_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n") == 414
    )
    path = "/healthz?a=" + "x" * 16_000
    assert (await call(server.http_address, "GET", path)).status == 200


async def test_300_mib_of_headers_on_one_connection_are_not_kept_in_memory(server: Server) -> None:
    before = resident_bytes()
    piece = b"x" * (1 << 20)
    async with connected(server.http_address) as (reader, writer):
        writer.write(HEAD + b"a: ")
        sent = 0
        with contextlib.suppress(ConnectionError):
            for _ in range(300):
                writer.write(piece)
                await writer.drain()
                sent += 1
        assert await status_of(reader) == 431
    assert resident_bytes() - before < 50 << 20


async def test_trailers_count_as_headers(server: Server) -> None:
    chunked = HEAD + b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n"
    async with connected(server.http_address) as (reader, writer):
        writer.write(chunked + b"0\r\na: ")
        with contextlib.suppress(ConnectionError):
            for _ in range(64):
                writer.write(b"x" * 65_536)
                await writer.drain()
        assert await status_of(reader) == 431


async def test_empty_lines_instead_of_a_request_are_bounded(server: Server) -> None:
    async with connected(server.http_address) as (reader, writer):
        with contextlib.suppress(ConnectionError):
            for _ in range(64):
                writer.write(b"\r\n" * 32_768)
                await writer.drain()
        assert await status_of(reader) == 431


@pytest.mark.parametrize("begun", [b"", b"GET /healthz HT", HEAD + b"a: b\r\n"], ids=["nothing", "line", "headers"])
async def test_headers_that_do_not_arrive_in_time_are_answered_with_408(sqlite_url: str, begun: bytes) -> None:
    async with Server(settings_for(sqlite_url, http_header_timeout_s=0.1)) as server:
        assert await exchange(server.http_address, begun) == 408


async def test_the_next_request_of_a_connection_has_the_same_time_for_its_headers(sqlite_url: str) -> None:
    async with Server(settings_for(sqlite_url, http_header_timeout_s=0.2)) as server:
        async with connected(server.http_address) as (reader, writer):
            writer.write(b"HEAD /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            writer.write(b"\r\n")
            assert await status_of(reader) == 408


async def test_500_slow_connections_are_closed(sqlite_url: str) -> None:
    async with Server(settings_for(sqlite_url, http_header_timeout_s=0.5)) as server:
        async with contextlib.AsyncExitStack() as stack:
            slow = [await stack.enter_async_context(connected(server.http_address)) for _ in range(500)]
            for _, writer in slow:
                writer.write(b"GET /healthz HTTP/1.1\r\na: ")
            assert {await status_of(reader) for reader, _ in slow} == {408}
        assert (await call(server.http_address, "GET", "/healthz")).status == 200


async def test_a_body_that_stops_arriving_is_answered_with_408(sqlite_url: str) -> None:
    async with Server(settings_for(sqlite_url, http_body_timeout_s=0.1)) as server:
        body = b"content-type: application/json\r\ncontent-length: 100\r\n\r\n{"
        assert await exchange(server.http_address, HEAD + body) == 408
        chunked = b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n2;"
        assert await exchange(server.http_address, HEAD + chunked) == 408


async def test_an_open_stream_outlives_the_times_for_headers_and_body(sqlite_url: str) -> None:
    settings = settings_for(sqlite_url, http_header_timeout_s=0.05, http_body_timeout_s=0.05, keepalive_s=0.1)
    async with Server(settings) as server, Stream(server.http_address, x_harbor_session="s") as stream:
        comments = [await stream.frame() for _ in range(6)]
        assert None not in comments


async def test_connections_beyond_the_limit_are_answered_with_503(sqlite_url: str) -> None:
    async with Server(settings_for(sqlite_url, http_max_connections=2)) as server:
        async with Stream(server.http_address, x_harbor_session="s"):
            async with Stream(server.http_address, x_harbor_session="s"):
                answer = await call(server.http_address, "GET", "/healthz")
                assert answer.status == 503
                assert answer.headers["retry-after"] == "1"
        while (await call(server.http_address, "GET", "/healthz")).status == 503:
            pass  # until the server notices that the streams are gone


async def test_refused_connections_are_logged_once_a_second_without_traceback(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        for _ in range(50):
            assert await exchange(server.http_address, b"\x00\x01\x02\r\n\r\n") == 400
    assert len(caplog.records) <= 5
    assert all(record.exc_info is None for record in caplog.records)


async def test_a_gateway_has_the_same_limits(sqlite_url: str) -> None:
    async with Gateway("http://127.0.0.1:1", "token") as gateway:
        request = b"POST /ingress/a HTTP/1.1\r\nhost: localhost\r\na: " + b"x" * 70_000 + b"\r\n\r\n"
        assert await exchange(gateway.address, request) == 431
