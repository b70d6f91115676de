"""The HTTP endpoints of health, readiness and metrics."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from asyncio import to_thread

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tape.client import AsyncTapeClient
from tape.errors import InvalidConfig, StoreUnavailable
from tape.server.server import Server
from tests.conftest import settings_for


async def get(server: Server, path: str, accept: str = "*/*") -> tuple[int, str]:
    def fetch() -> tuple[int, str]:
        request = urllib.request.Request(f"http://{server.http_address}{path}", headers={"Accept": accept})
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await to_thread(fetch)


async def test_health_is_served_as_text_and_json(server: Server) -> None:
    assert await get(server, "/healthz") == (200, "ok\n")
    assert await get(server, "/") == (200, "ok\n")
    code, body = await get(server, "/healthz", "application/json")
    assert (code, json.loads(body)) == (200, {"status": "ok"})
    assert (await get(server, "/nothing"))[0] == 404


@pytest.mark.parametrize("method", ["read", "write"])
async def test_readiness_reads_and_writes_the_database(
    server: Server, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr("tape.server.readiness.KEEP_S", 0.0)
    assert await get(server, "/readyz") == (200, "ready\n")

    async def gone(operation: object) -> None:
        raise StoreUnavailable("it is gone")

    monkeypatch.setattr(server.database, method, gone)
    assert await get(server, "/readyz") == (503, "store ping failed: it is gone\n")
    async with grpc.aio.insecure_channel(server.grpc_address) as channel:
        health = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING
    monkeypatch.undo()
    monkeypatch.setattr("tape.server.readiness.KEEP_S", 0.0)
    assert await get(server, "/readyz") == (200, "ready\n")


async def test_frequent_readiness_requests_share_one_write(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[object] = []
    monkeypatch.setattr("tape.server.readiness._touch_head", written.append)
    monkeypatch.setattr("tape.server.readiness.KEEP_S", 60.0)
    assert [await get(server, "/readyz") for _ in range(10)] == [(200, "ready\n")] * 10
    assert len(written) == 1


async def test_a_failed_background_task_is_restarted_counted_and_shown_in_readiness(
    server: Server, client: AsyncTapeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_on, failures = server.hub._read_on, iter([RuntimeError("an error that is handled nowhere")])

    async def failing() -> bool:
        for error in failures:
            raise error
        return await read_on()

    monkeypatch.setattr(server.hub, "_read_on", failing)
    restarts = server.metrics.background._restarts.labels("journal catch-up")
    async with asyncio.timeout(20):
        while not restarts._value.get():
            server.hub._stale.set()
            await asyncio.sleep(0.01)
    code, text = await get(server, "/readyz")
    assert (code, "journal catch-up: RuntimeError: an error that is handled nowhere" in text) == (503, True)
    monkeypatch.setattr("tape.base.telemetry.background.STABLE_S", 0.0)
    assert await get(server, "/readyz") == (200, "ready\n")


async def test_metrics_count_what_happens(server: Server, client: AsyncTapeClient) -> None:
    for _ in range(3):
        await client.append("/tape/a/b")
    await client.head()
    _, text = await get(server, "/metrics")
    assert "tape_journal_entries_total 3.0" in text
    assert "tape_journal_head 3.0" in text
    assert 'tape_rpcs_total{method="GetHead",status="OK"} 1.0' in text


async def test_http_can_be_turned_off(sqlite_url: str) -> None:
    async with Server(settings_for(sqlite_url, http_listen="")) as server:
        assert server.http_address == ""


@pytest.mark.parametrize("setting", ["listen", "http_listen"])
async def test_an_occupied_address_is_named(server: Server, setting: str, tmp_path: object) -> None:
    taken = server.grpc_address if setting == "listen" else server.http_address
    other = Server(settings_for(f"sqlite:{tmp_path}/other.db", **{setting: taken}))
    with pytest.raises(InvalidConfig, match=f"Cannot listen on {taken} .* --{setting.replace('_', '-')}"):
        await other.start()
