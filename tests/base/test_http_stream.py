"""Responses that do not end, read line by line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tape.base.addresses import OPERATOR, PUBLIC_ONLY
from tape.base.http_stream import LineStream, open_lines
from tape.errors import (
    AddressNotAllowed,
    HttpInterrupted,
    HttpRequestFailed,
    HttpResponseTooLarge,
    HttpUnreachable,
    InvalidHttpRequest,
)
from tests.services import free_port

Serving = Callable[..., Awaitable[str]]


@pytest.fixture
async def serving() -> AsyncIterator[Serving]:
    """Starts a server that answers each request with the given parts and then, if asked so, stays silent."""
    servers: list[asyncio.Server] = []
    requests: list[bytes] = []

    async def start(*parts: bytes, stays: bool = False) -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            requests.append(await reader.readuntil(b"\r\n\r\n"))
            for part in parts:
                writer.write(part)
            if stays:
                await reader.read()
            writer.close()

        servers.append(await asyncio.start_server(serve, "127.0.0.1", 0))
        return f"http://127.0.0.1:{servers[-1].sockets[0].getsockname()[1]}"

    yield start
    for server in servers:
        server.close()


async def read(url: str, **options: float) -> tuple[LineStream, list[str]]:
    async with open_lines(f"{url}/stream", {"accept": "text/event-stream"}, OPERATOR, **options) as response:
        return response, [line async for line in response.lines()]


@pytest.mark.parametrize(
    "parts",
    [
        (b"HTTP/1.1 200 OK\r\nX-A: b\r\n\r\n", b"one\r\ntw", b"o\n\nthr\xc3\xa9e\n"),
        (
            b"HTTP/1.1 200 OK\r\nX-A: b\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"3\r\none\r\n",
            b"6;x=y\r\n\ntwo\n\n\r\n7\r\nthr\xc3\xa9e\n\r\n",
            b"0\r\n\r\n",
        ),
    ],
    ids=["until_close", "chunked"],
)
async def test_lines_arrive_without_their_ends(serving: Serving, parts: tuple[bytes, ...]) -> None:
    response, lines = await read(await serving(*parts))
    assert (response.status, response.headers["x-a"], lines) == (200, "b", ["one", "two", "", "thrée"])


async def test_the_text_of_an_error_is_read(serving: Serving) -> None:
    url = await serving(b"HTTP/1.1 503 Busy\r\nContent-Length: 5\r\n\r\nlater", stays=True)
    async with open_lines(url, {}, OPERATOR) as response:
        assert (response.status, await response.read_text()) == (503, "later")


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ((), HttpInterrupted),
        ((b"SSH-2.0-server\r\n\r\n",), HttpInterrupted),
        ((b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",), HttpInterrupted),
        ((b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",), HttpInterrupted),
        ((b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n",), HttpResponseTooLarge),
        ((b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 10_000 + b"\r\n",), HttpResponseTooLarge),
        ((b"HTTP/1.1 200 OK\r\nX-A: " + b"b" * 200_000 + b"\r\n\r\n",), HttpResponseTooLarge),
    ],
)
async def test_a_broken_or_oversized_response_is_an_error(
    serving: Serving, parts: tuple[bytes, ...], error: type[HttpRequestFailed]
) -> None:
    with pytest.raises(error):
        await read(await serving(*parts))


@pytest.mark.parametrize("part", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\none\n"])
async def test_silence_ends_the_stream(serving: Serving, part: bytes) -> None:
    with pytest.raises(HttpInterrupted):
        await read(await serving(part, stays=True), idle_timeout_s=0.05)


async def test_errors_of_the_reader_of_the_lines_pass_unchanged(serving: Serving) -> None:
    url = await serving(b"HTTP/1.1 200 OK\r\n\r\none\n", stays=True)
    with pytest.raises(ValueError, match=r"^mine$"):
        async with open_lines(url, {}, OPERATOR):
            raise ValueError("mine")


async def test_a_server_that_does_not_accept_is_unreachable() -> None:
    with pytest.raises(HttpUnreachable):
        await read(f"http://127.0.0.1:{free_port()}")


async def test_the_address_policy_holds_for_streams(serving: Serving) -> None:
    with pytest.raises(AddressNotAllowed):
        async with open_lines(await serving(), {}, PUBLIC_ONLY):
            pass


@pytest.mark.parametrize(("url", "headers"), [("ftp://x/", {}), ("http://127.0.0.1:1/", {"x-a": "b\r\nc: d"})])
async def test_a_request_that_cannot_be_sent_is_invalid_input(url: str, headers: dict[str, str]) -> None:
    with pytest.raises(InvalidHttpRequest):
        async with open_lines(url, headers, OPERATOR):
            pass
