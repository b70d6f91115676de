"""`/mcp` of a server: each caller sees and does what its token permits, and hostile requests are refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import httpx
import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

from tape.client import AsyncTapeClient
from tape.engine.security import service_keys
from tape.engine.security.service_keys import KeyRequest
from tape.mcp.mount import McpMount
from tape.server.server import Server
from tests.calls import until
from tests.conftest import settings_for
from tests.mcp.support import HEADERS, VERSION, WireClient

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Guarded(NamedTuple):
    """A server with keys."""

    server: Server
    url: str
    keys: dict[str, str]


async def issue(server: Server, tenant: str, *scopes: str) -> str:
    request = KeyRequest(f"k-{tenant}-{'-'.join(scopes)}", tenant, scopes)
    issued = await server.database.write(lambda tx: service_keys.create(tx, request, by="operator"))
    return issued.text


@pytest.fixture
async def guarded() -> AsyncIterator[Guarded]:
    async with Server(settings_for("memory", require_keys=True), McpMount) as server:
        await until(lambda: server.http_address)
        keys = {
            "a": await issue(server, "a", "agent"),
            "b": await issue(server, "b", "agent"),
            "worker": await issue(server, "a", "runtime"),
        }
        yield Guarded(server, f"http://{server.http_address}", keys)


@pytest.fixture
async def open_url() -> AsyncIterator[str]:
    async with Server(settings_for("memory"), McpMount) as server:
        yield f"http://{server.http_address}"


def bearing(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def connected(url: str, key: str) -> WireClient:
    client = WireClient(url, bearing(key))
    assert (await client.initialize()).status_code == 200
    return client


async def status_of(client: WireClient, message: Any) -> int:
    try:
        return (await client.post(message)).status_code
    except httpx.RemoteProtocolError:  # its key was withdrawn while it was answered
        return 0


async def tool(client: WireClient, name: str, /, **arguments: Any) -> Any:
    answer = (await client.call(name, arguments))[-1].message
    assert answer is not None
    return answer.get("result", answer)


async def test_the_clients_of_the_sdk_use_an_open_server_in_both_eras(open_url: str) -> None:
    for mode in ("legacy", "auto"):
        async with Client(f"{open_url}/mcp", mode=mode) as client:
            appended = await client.call_tool("append", {"type": "note.made", "payload": {"mode": mode}})
            assert not appended.is_error, appended
            found = await client.call_tool("search", {"text": mode})
            assert found.structured_content is not None
            assert [entry["payload"] for entry in found.structured_content["entries"]] == [{"mode": mode}]


async def test_each_tenant_sees_its_own_entries_and_runs_only(guarded: Guarded) -> None:
    a, b = await connected(guarded.url, guarded.keys["a"]), await connected(guarded.url, guarded.keys["b"])
    async with a, b, AsyncTapeClient(f"tape://{guarded.server.grpc_address}", id_token=guarded.keys["a"]) as owner:
        appended = await tool(a, "append", type="note.made", payload={"text": "secret of a"}, run_id="ra")
        begun = await owner.begin_run(app_name="shop", user_id="u", session_id="s", invocation_id="1", lease_owner="w")
        assert "secret of a" in json.dumps(await tool(a, "tail"))
        for name, arguments in (
            ("tail", {}),
            ("tail", {"after": 0}),
            ("tail", {"run_id": "ra"}),
            ("search", {"text": "secret"}),
            ("runs", {}),
        ):
            assert "secret of a" not in (shown := json.dumps(await tool(b, name, **arguments)))
            assert begun.run_id not in shown
        for name in ("runs", "explain"):
            foreign = await tool(b, name, run_id=begun.run_id)
            unknown = await tool(b, name, run_id="nowhere")
            assert json.dumps(foreign).replace(begun.run_id, "nowhere") == json.dumps(unknown)
        assert "no such run" not in json.dumps(await tool(a, "runs", run_id=begun.run_id))
        seq = appended["structuredContent"]["global_seq"]
        read = {"jsonrpc": "2.0", "id": 5, "method": "resources/read", "params": {"uri": f"tape://entries/{seq}"}}
        assert "secret of a" in (await a.post(read)).text
        assert "secret of a" not in (await b.post(read)).text


async def test_a_session_belongs_to_the_key_that_opened_it(guarded: Guarded) -> None:
    async with await connected(guarded.url, guarded.keys["a"]) as a:
        for headers in (bearing(guarded.keys["b"]), bearing(guarded.keys["worker"])):
            response = await a._http.post(
                a.url, json={"jsonrpc": "2.0", "id": 9, "method": "tools/list"}, headers={**a.headers, **headers}
            )
            assert response.status_code == 404


async def test_requests_without_a_valid_key_are_refused(guarded: Guarded) -> None:
    for headers in ({}, bearing("wrong"), bearing(f"{guarded.keys['a']}x"), {"authorization": "Basic YTpi"}):
        async with WireClient(guarded.url, headers) as client:
            assert (await client.initialize()).status_code == 401
            modern = {**HEADERS, **headers, "mcp-protocol-version": "2026-07-28"}
            listed = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
            assert (await client._http.post(client.url, json=listed, headers=modern)).status_code == 401
            assert (await client._http.get(client.url, headers=client.headers)).status_code == 401
            assert (await client._http.delete(client.url, headers=client.headers)).status_code == 401


async def test_a_revoked_key_is_refused_in_its_own_session(guarded: Guarded) -> None:
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    async with await connected(guarded.url, guarded.keys["a"]) as a:
        assert (await a.post(listing)).status_code == 200
        await guarded.server.database.write(lambda tx: service_keys.revoke(tx, "k-a-agent", None))
        async with asyncio.timeout(30):
            while await status_of(a, listing) != 401:
                await asyncio.sleep(0.02)


async def test_scopes_hold_as_for_every_endpoint(guarded: Guarded) -> None:
    key = await issue(guarded.server, "a", "gateway")
    async with await connected(guarded.url, key) as client:
        refused = await tool(client, "runs")
        assert refused["isError"]
        assert "needs the scope" in json.dumps(refused)
        reserved = await tool(client, "append", subject="/tape/effect/confirmed/1")
        assert "reserved" in json.dumps(reserved)


async def test_hostile_hosts_and_origins_are_refused(open_url: str) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    async with httpx.AsyncClient() as http:
        for headers in (
            {"host": "evil.example"},
            {"origin": "https://evil.example"},
            {"sec-fetch-site": "cross-site"},
            {"content-type": "text/plain"},
        ):
            response = await http.post(f"{open_url}/mcp", json=message, headers={**HEADERS, **headers})
            assert response.status_code in (400, 403, 415, 421), (headers, response.text)


async def test_huge_and_malformed_requests_are_refused_and_the_server_stays_up(guarded: Guarded) -> None:
    async with await connected(guarded.url, guarded.keys["a"]) as client:
        large = {"name": "append", "arguments": {"type": "a.b", "payload": "x" * (3 << 20)}}
        call = {"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": large}
        assert (await client.post(call)).status_code == 413
        for body in (
            b"{",
            b"\xff\xfe",
            b"[" * 100_000,
            b'{"jsonrpc":"2.0","id":1,"method":' + b"[" * 5_000 + b"]" * 5_000,
        ):
            assert 400 <= (await client.post(body)).status_code < 500
        deep: Any = []
        for _ in range(150):
            deep = [deep]
        refused = await tool(client, "append", type="a.b", payload=deep)
        assert "TAPE-" in json.dumps(refused) or "error" in json.dumps(refused).lower()
        assert not (await tool(client, "tail")).get("isError")
        metrics = (await client._http.get(f"{guarded.url}/metrics")).text
        assert 'tape_mcp_calls_total{outcome="ok",tool="tail"}' in metrics


async def test_a_retried_call_of_a_session_appends_once(guarded: Guarded) -> None:
    async with await connected(guarded.url, guarded.keys["a"]) as client:
        first = await client.call("append", {"type": "note.made", "payload": 1}, request_id=77)
        again = await client.call("append", {"type": "note.made", "payload": 1}, request_id=77)
        seqs = {event.message["result"]["structuredContent"]["global_seq"] for event in (first[-1], again[-1])}  # type: ignore[index]
        assert len(seqs) == 1


async def test_a_client_of_the_sdk_sends_its_key(guarded: Guarded) -> None:
    async with httpx.AsyncClient(headers=bearing(guarded.keys["a"])) as http:
        async with Client(streamable_http_client(f"{guarded.url}/mcp", http_client=http)) as client:
            assert {each.name for each in (await client.list_tools()).tools} >= {"append", "tail"}
    assert VERSION


async def test_without_the_option_there_is_no_route() -> None:
    async with Server(settings_for("memory")) as server, httpx.AsyncClient() as http:
        assert (await http.post(f"http://{server.http_address}/mcp", json={})).status_code == 404
