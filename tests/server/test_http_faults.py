"""Whatever is sent over HTTP, the server answers with a documented error and stays up."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest

from tape.engine.security.tokens import SigningKey, jwks_path, load_key
from tape.server.server import Server
from tests.conftest import settings_for
from tests.server.test_stream import bearer
from tests.web import call

HEADERS = [
    "authorization", "x-harbor-session", "x-harbor-tenant", "x-harbor-run", "x-harbor-event-type", "last-event-id",
    "content-type", "content-length", "transfer-encoding", "origin", "host", "accept", "ce-specversion", "ce-id",
    "ce-source", "ce-type", "ce-subject", "expect", "connection", "access-control-request-method",
]  # fmt: skip
PATHS = [
    "/v1/events", "/v1/events/list", "/v1/events/aggregate", "/v1/control/runtime.info", "/v1/artifacts/x",
    "/v1/events/",
    "/v1/openapi.json", "/healthz", "/", "/v1/events?resume_seq=", "/v1/events?admin=", "/v1/events?access_token=",
    "/v1/events?type=", "/v1/artifacts/", "/%00", "//",
]  # fmt: skip
BITS = [
    "", "0", "-1", "1", "9" * 30, "abc", "\xff", "Bearer", "Bearer ", "Bearer a.b.c", "Basic x", "%00", "%ff", "..",
    "*",
    "null", "true", "application/json", "application/cloudevents+json", "application/cloudevents-batch+json",
    "text/plain",
    "chunked", "100-continue", "1.0", "a,b", ",", "x" * 3000, "\t", '{"a":', "[]", "{}", "localhost", "[::1", "::",
    "\xb2", "keep-alive", "close", "upgrade",
]  # fmt: skip
BODIES = [
    b"", b"{}", b"[]", b"null", b"{", b"\xff", b"[" * 3000, b'{"window":1,"bucket":1}', b'{"limit":-5}',
    b'{"filter":{}}',
    b'{"filter":{"since":"9999-99-99T99:99:99Z"}}', b'{"window":9223372036854775807,"bucket":9223372036854775807}',
    b'{"cursor":9223372036854775807}', b'{"filter":{"session_ids":["\\u0000"]}}', b'{"filter":{"run_ids":["\\ud800"]}}',
    b'{"specversion":"1.0","id":"1","source":"s","type":"a.b"}', b'[{"specversion":"1.0"}]', b'{"data":NaN}',
    b'{"specversion":"1.0","id":"1","source":"s","type":"a.b","data":"\\ud800\\\\"}', b"x" * 100_000,
    b'{"specversion":"1.0","id":"\\ud800","source":"s","type":"a.b","partitionkey":"\\u0000"}',
    b'{"window":1000000000,"bucket":1000000000,"anchor":"0001-01-01T00:00:00Z"}',
]  # fmt: skip


async def exchange(address: str, request: bytes) -> int:
    """Send raw bytes; the status of the answer, or 0 if the connection was closed without one."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        async with asyncio.timeout(5):
            line = await reader.readline()
        return int(line.split()[1]) if line else 0
    except (TimeoutError, ConnectionError):
        return 0  # it waits for the rest of a request that never comes
    finally:
        writer.close()


def requests(seed: int, count: int, token: str) -> list[bytes]:
    dice = random.Random(seed)
    found = []
    for _ in range(count):
        method = dice.choice(["GET", "POST", "HEAD", "OPTIONS", "PUT", "GET", "POST"])
        path = dice.choice(PATHS)
        if "=" in path:
            path += dice.choice(BITS).replace(" ", "%20").replace("\t", "%09")
        body = dice.choice(BODIES)
        lines = [f"{method} {path} HTTP/1.1"]
        names = dice.sample(HEADERS, dice.randrange(6))
        lines += [f"{name}: {dice.choice(BITS)}" for name in names]
        if "authorization" not in names:
            lines.append(f"authorization: {token}")
        if "host" not in names:
            lines.append("host: localhost")
        if "content-length" not in names and "transfer-encoding" not in names:
            lines.append(f"content-length: {len(body)}")
        found.append("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
    return found


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return load_key(tmp_path / "dev.key")[0]


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_no_header_query_or_body_makes_the_server_fail(
    store_url: str, tmp_path: Path, key: SigningKey, is_guarded: bool, caplog: pytest.LogCaptureFixture
) -> None:
    keys = {"auth_jwks": str(jwks_path(tmp_path / "dev.key"))} if is_guarded else {}
    async with Server(settings_for(store_url, max_subscribers_per_session=10_000, **keys)) as server:
        slots = asyncio.Semaphore(8)

        async def send(request: bytes) -> int:
            async with slots:
                return await exchange(server.http_address, request)

        for number in range(4):
            wanted = requests(number, 250, bearer(key, scopes=["admin"]))
            statuses = await asyncio.gather(*map(send, wanted))
            bad = [(status, request[:400]) for status, request in zip(statuses, wanted, strict=True) if status >= 500]
            assert not bad
            assert {200, 400, 404, 405} <= set(statuses)
        assert (await call(server.http_address, "GET", "/healthz")).status == 200
    assert "Traceback" not in caplog.text


async def test_noise_is_answered_or_dropped(sqlite_url: str) -> None:
    async with Server(settings_for(sqlite_url)) as server:
        dice = random.Random(5)
        for _ in range(150):
            noise = bytes(dice.randrange(256) for _ in range(dice.randrange(200)))
            assert await exchange(server.http_address, b"GET " + noise + b"\r\n\r\n") < 500


async def test_errors_of_the_store_are_answered_without_a_stack_trace(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Server(settings_for(sqlite_url)) as server:

        async def broken(*_: object) -> None:
            raise RuntimeError("secret internals")

        monkeypatch.setattr(server.database, "read", broken)
        answer = await call(server.http_address, "POST", "/v1/events/list", {})
        assert (answer.status, answer.json()["code"]) == (500, "runtime_error")
        assert "internals" not in answer.body.decode()
        monkeypatch.undo()
        assert json.loads((await call(server.http_address, "POST", "/v1/events/list", {})).body)["events"] == []
