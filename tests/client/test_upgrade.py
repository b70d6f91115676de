"""A client changes from gRPC to the call protocol by itself, and back; its callers see no difference but the speed."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tape.base.telemetry.tracing import Trace, current_span
from tape.client import AsyncTapeClient, TapeClient, outgoing_calls, rpcs
from tape.client.upgrade import ATTEMPTS, PROXIES, WITHOUT_PROXY, _split
from tape.engine.security.tokens import jwks_path, load_key
from tape.errors import (
    InvalidConfig,
    InvalidInput,
    LeaseHeld,
    NotFound,
    PayloadTooLarge,
    RpcFailed,
    ServerUnreachable,
    TapeError,
    TenantLimitReached,
    TokenRejected,
    VersionConflict,
)
from tape.model.entry import Draft
from tape.proto import tape_pb2 as pb
from tape.server.server import Server
from tests.calls import Held, until
from tests.conftest import settings_for
from tests.proxy import FaultProxy
from tests.services import ServerProcess

RUN = {"app_name": "app", "user_id": "ann", "session_id": "s", "invocation_id": "i"}


@pytest.fixture
async def server(sqlite_url: str) -> AsyncIterator[Server]:
    async with Server(settings_for(sqlite_url)) as server:
        yield server


def url_of(server: Server) -> str:
    return f"tape://{server.grpc_address}"


async def upgrade(client: AsyncTapeClient) -> AsyncTapeClient:
    """Make calls until the client has changed to the call protocol."""
    async with asyncio.timeout(60):
        while not client._channel.is_upgraded:
            await client.head()
            await asyncio.sleep(0.005)
    return client


@pytest.fixture
async def client(server: Server) -> AsyncIterator[AsyncTapeClient]:
    async with AsyncTapeClient(url_of(server)) as client:
        yield await upgrade(client)


def count(server: Server, text: str) -> float:
    lines = server.metrics.render().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(text))


# ── which way calls go ───────────────────────────────────────────────────────────────────────────


async def test_a_client_asks_once_and_then_calls_in_frames(server: Server, client: AsyncTapeClient) -> None:
    await client.append("/tape/order/paid/1")
    await client.begin_run(**RUN)
    assert count(server, "tape_call_connections ") == 1
    # By gRPC, and as the first call in frames.
    assert count(server, 'tape_rpcs_total{method="GetServerInfo"') == 2
    assert count(server, 'tape_rpcs_total{method="AppendStream"') == 0
    assert count(server, 'tape_rpcs_total{method="Append",status="OK"') == 1


async def test_a_program_of_one_call_opens_no_connection(server: Server) -> None:
    async with AsyncTapeClient(url_of(server)) as client:
        await client.head()
    assert count(server, 'tape_rpcs_total{method="GetServerInfo"') == 0


@pytest.mark.parametrize("is_variable", [False, True])
async def test_the_transport_grpc_never_changes(
    server: Server, monkeypatch: pytest.MonkeyPatch, is_variable: bool
) -> None:
    if is_variable:
        monkeypatch.setenv("TAPE_TRANSPORT", "grpc")
    async with AsyncTapeClient(url_of(server), transport=None if is_variable else "grpc") as client:
        for _ in range(5):
            await client.head()
        assert not client._channel.is_upgraded
    assert count(server, 'tape_rpcs_total{method="GetServerInfo"') == 0


async def test_an_unknown_transport_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidConfig, match="The transport 'http' is not known; use auto or grpc"):
        AsyncTapeClient(transport="http")  # type: ignore[arg-type]
    monkeypatch.setenv("TAPE_TRANSPORT", "frames")
    with pytest.raises(InvalidConfig, match="TAPE_TRANSPORT"):
        TapeClient()


async def stays_with_grpc(server: Server, url: str) -> None:
    async with AsyncTapeClient(url) as client:
        for _ in range(3):
            await client.head()
        await until(lambda: client._channel._upgrade._opening is None)
        await client.head()
        assert client._channel._upgrade._is_off
        assert not client._channel.is_upgraded
    assert count(server, 'tape_rpcs_total{method="GetServerInfo"') == 1


async def test_a_server_of_an_older_version_is_asked_once(server: Server) -> None:
    server._methods["GetServerInfo"]._function = None
    await stays_with_grpc(server, url_of(server))


async def test_a_client_behind_a_proxy_stays_with_grpc(server: Server) -> None:
    host, _, port = server.grpc_address.rpartition(":")
    with FaultProxy((host, int(port))) as proxy:
        await stays_with_grpc(server, f"tape://{proxy.address}")


async def test_a_client_with_an_http_proxy_stays_with_grpc(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*PROXIES, *WITHOUT_PROXY):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "example.com")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with AsyncTapeClient(url_of(server)) as client:
        assert client._channel._upgrade._is_off
    monkeypatch.setenv("no_proxy", "example.com,127.0.0.1")
    async with AsyncTapeClient(url_of(server)) as client:
        await upgrade(client)


async def test_a_server_without_http_is_called_by_grpc(sqlite_url: str) -> None:
    async with Server(settings_for(sqlite_url, http_listen="")) as server:
        await stays_with_grpc(server, url_of(server))


@pytest.mark.parametrize("target", ["unix:/tmp/s:7878", "dns:///host:7878", "a:1,b:2", "ipv4:1.2.3.4:5,6.7.8.9:5"])
def test_an_address_that_only_grpc_understands_stays_with_it(target: str) -> None:
    assert not _split(target)[0]
    assert _split("[::1]:7878") == ("::1", 7878)
    assert _split("host:7878") == ("host", 7878)


async def test_a_server_of_another_journal_gets_no_token(server: Server, tmp_path: Path) -> None:
    async with Server(settings_for(f"sqlite:{tmp_path / 'other.db'}")) as other:
        server.http_address, own = other.http_address, server.http_address
        async with AsyncTapeClient(url_of(server), id_token="a-secret") as client:
            for _ in range(3):
                await client.head()
            await until(lambda: client._channel._upgrade._backoff.failures)
            assert count(other, 'tape_http_requests_total{route="/v1/calls",status="421"}') == 1
            assert count(other, "tape_call_connections ") == 0
            server.http_address = own
            await upgrade(client)  # it is tried again


async def test_large_requests_go_by_grpc_and_get_its_error(server: Server, client: AsyncTapeClient) -> None:
    drafts = [Draft(subject="/tape/order/paid/1", payload_json=f'"{"x" * 300_000}"') for _ in range(10)]
    assert len(await client.append_many(drafts)) == 10
    with pytest.raises(PayloadTooLarge, match="grpc_max_message_bytes"):
        await client.append_many(drafts * 2)
    assert client._channel.is_upgraded
    assert count(server, "tape_call_connections ") == 1


# ── the same answers ─────────────────────────────────────────────────────────────────────────────


async def _held_lease(client: AsyncTapeClient) -> object:
    run = await client.begin_run(**RUN, lease_owner="w1", lease_ttl_ms=60_000)
    return await client.with_lease_owner("w2").end_run(run_id=run.run_id, status=pb.RUN_STATUS_TERMINAL)


CALLS: dict[str, tuple[Callable[[AsyncTapeClient], Awaitable[object]], type[TapeError]]] = {
    "not found": (lambda client: client.get_run(run_id="unknown"), NotFound),
    "nul": (lambda client: client.get_value(namespace="a\0", key="k"), InvalidInput),
    "conflict": (
        lambda client: client.write_value(namespace="n", key="k", value_json="2", if_version=7),
        VersionConflict,
    ),
    "lease": (_held_lease, LeaseHeld),
    "append": (lambda client: client.append("nonsense"), InvalidInput),
}


@pytest.mark.parametrize("name", CALLS)
async def test_errors_are_the_same_both_ways(server: Server, client: AsyncTapeClient, name: str) -> None:
    call, kind = CALLS[name]
    found = []
    async with AsyncTapeClient(url_of(server), transport="grpc") as by_grpc:
        for each in (client, by_grpc):
            with pytest.raises(kind) as raised:
                await call(each)
            text = re.sub(r"\d+ ms", "# ms", str(raised.value))
            found.append((type(raised.value), raised.value.code, text))
    assert found[0] == found[1]
    assert client._channel.is_upgraded


async def test_results_are_the_same_both_ways(server: Server, client: AsyncTapeClient) -> None:
    async with AsyncTapeClient(url_of(server), transport="grpc") as by_grpc:
        run = await client.begin_run(**RUN, lease_owner="w", lease_ttl_ms=60_000, labels={"a": "b"})
        again = await by_grpc.begin_run(**RUN, lease_owner="w", lease_ttl_ms=60_000)
        assert (again.run_id, again.resumed) == (run.run_id, True)
        for read in ("get_run", "list_obligations"):
            assert await getattr(client, read)(run_id=run.run_id) == await getattr(by_grpc, read)(run_id=run.run_id)
        assert await client.head() == await by_grpc.head()


async def test_a_refused_call_says_when_to_come_back(sqlite_url: str, tmp_path: Path) -> None:
    key, _ = load_key(tmp_path / "dev.key")
    settings = settings_for(sqlite_url, auth_jwks=str(jwks_path(tmp_path / "dev.key")), tenant_appends_per_s=1.0)
    token = key.mint(tenant="a", user="u", session="s", scopes=["agent"])
    async with Server(settings) as server, AsyncTapeClient(url_of(server), id_token=token) as client:
        await upgrade(client)
        drafts = pb.AppendRequest(drafts=[pb.Draft(subject="/tape/order/paid/1", user="u", session="s")] * 5)
        await client._channel.call(rpcs.APPEND, drafts)
        with pytest.raises(TenantLimitReached) as raised:
            await client._channel.call(rpcs.APPEND, drafts)
        assert raised.value.retry_after_s > 1.0


@pytest.mark.parametrize("transport", ["auto", "grpc"])
async def test_a_call_ends_at_its_timeout_both_ways(server: Server, transport: Any) -> None:
    async with AsyncTapeClient(url_of(server), transport=transport) as client:
        if transport == "auto":
            await upgrade(client)
        held = Held(server, "ListRuns")
        with pytest.raises(RpcFailed, match="DEADLINE_EXCEEDED: Deadline Exceeded") as raised:
            await client._channel.call(rpcs.LIST_RUNS, pb.ListRunsRequest(), 0.1)
        assert raised.value.grpc_status == "DEADLINE_EXCEEDED"
        await until(lambda: held.cancelled)


async def test_a_cancelled_caller_cancels_its_call_and_no_other(server: Server, client: AsyncTapeClient) -> None:
    held = Held(server, "ListRuns")
    gone, kept = asyncio.create_task(client.list_runs()), asyncio.create_task(client.list_runs())
    await until(lambda: held.begun == 2)
    gone.cancel()
    await until(lambda: held.cancelled == 1)
    held.release.set()
    assert not (await kept).runs
    assert gone.cancelled()


async def test_concurrent_appends_are_numbered_in_the_order_of_their_calls(client: AsyncTapeClient) -> None:
    seqs = await asyncio.gather(*(client.append("/tape/order/paid/1", {"n": n}) for n in range(700)))
    assert seqs == list(range(1, 701))
    assert client._channel.is_upgraded


async def test_appends_stay_in_order_when_a_client_changes_under_load(server: Server) -> None:
    async with AsyncTapeClient(url_of(server)) as client:
        appending: list[asyncio.Task[int]] = []
        async with asyncio.timeout(60):
            while not client._channel.is_upgraded or len(appending) < 600:
                appending.append(asyncio.create_task(client.append("/tape/order/paid/1")))
                await asyncio.sleep(0)
        assert await asyncio.gather(*appending) == list(range(1, len(appending) + 1))
        assert client._channel.is_upgraded


async def test_a_batch_of_appends_does_not_share_the_trace_of_one(server: Server, client: AsyncTapeClient) -> None:
    async def append(trace_id: str) -> None:
        if trace_id:
            current_span.set(Trace(trace_id, "1" * 16))
        await client.append("/tape/order/paid/1")

    await asyncio.gather(append("a" * 32), append(""), append("b" * 32))
    rows = await server.database.read(lambda reader: reader.query("SELECT trace_id FROM tape_journal ORDER BY 1"))
    assert [row[0] for row in rows] == ["", "a" * 32, "b" * 32]


# ── lost connections ─────────────────────────────────────────────────────────────────────────────


def cut(client: AsyncTapeClient) -> None:
    connection = client._channel._upgrade.connection
    assert connection is not None
    connection.close()


async def test_calls_in_flight_fail_and_later_ones_go_by_grpc_until_it_is_back(
    server: Server, client: AsyncTapeClient
) -> None:
    held = Held(server, "ListRuns")
    waiting = asyncio.create_task(client.list_runs())
    await until(lambda: held.begun)
    cut(client)
    with pytest.raises(ServerUnreachable, match="cannot be reached"):
        await waiting
    assert not client._channel.is_upgraded
    await client.head()
    await upgrade(client)


async def test_appends_survive_a_lost_connection_and_are_not_repeated(server: Server, client: AsyncTapeClient) -> None:
    appending = asyncio.gather(*(client.append("/tape/order/paid/1", {"n": n}) for n in range(50)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    cut(client)
    assert sorted(await appending) == list(range(1, 51))
    assert (await server.journal.head()).global_seq == 50


async def test_a_connection_that_is_lost_without_a_sign_is_noticed(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing_calls, "PING_S", 0.2)
    monkeypatch.setattr(outgoing_calls, "PONG_S", 0.5)
    host, _, port = server.http_address.rpartition(":")
    with FaultProxy((host, int(port))) as proxy:
        server.http_address = proxy.address
        async with AsyncTapeClient(url_of(server)) as client:
            await upgrade(client)
            held = Held(server, "ListRuns")
            waiting = asyncio.create_task(client.list_runs())
            await until(lambda: held.begun)
            await asyncio.sleep(1.0)  # pings are answered: a call may take as long as it wants
            assert not waiting.done()
            proxy.become("black hole")
            async with asyncio.timeout(30):
                with pytest.raises(ServerUnreachable):
                    await waiting
            await client.head()


async def test_a_server_that_refuses_is_asked_again_with_growing_delays(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.http_address = "127.0.0.1:1"
    async with AsyncTapeClient(url_of(server)) as client:
        attempts = client._channel._upgrade._backoff
        async with asyncio.timeout(60):
            while attempts.failures < 3:
                await client.head()
        assert count(server, 'tape_rpcs_total{method="GetServerInfo"') == 3
    assert ATTEMPTS.delay(20) > 40


async def test_a_stopping_server_lets_its_clients_finish(sqlite_url: str) -> None:
    async with Server(settings_for(sqlite_url)) as server, AsyncTapeClient(url_of(server)) as client:
        await upgrade(client)
        held = Held(server, "ListRuns")
        waiting = asyncio.create_task(client.list_runs())
        await until(lambda: held.begun)
        stopping = asyncio.create_task(server.stop())
        await until(lambda: not client._channel.is_upgraded)
        held.release.set()
        assert not (await waiting).runs
        async with asyncio.timeout(10):
            await stopping


async def test_a_renewed_token_reaches_the_server(sqlite_url: str, tmp_path: Path) -> None:
    key, _ = load_key(tmp_path / "dev.key")
    settings = settings_for(sqlite_url, auth_jwks=str(jwks_path(tmp_path / "dev.key")))
    tokens = [key.mint(tenant=tenant, user="u", session="s", scopes=["agent"]) for tenant in ("a", "b")]
    async with Server(settings) as server, AsyncTapeClient(url_of(server), id_token=tokens[0]) as client:
        await upgrade(client)
        await client.write_value(namespace="n", key="k", value_json="1")
        client._channel._credentials._token = tokens[1]
        assert not (await client.get_value(namespace="n", key="k")).found
        client._channel._credentials._token = "nonsense"
        with pytest.raises(TokenRejected):
            await client.head()


async def test_a_server_killed_under_calls_in_frames_loses_and_repeats_nothing(tmp_path: Path) -> None:
    with ServerProcess(f"sqlite:{tmp_path / 'tape.db'}") as server:
        address = server.url.removeprefix("tape://")
        async with AsyncTapeClient(server.url) as client:
            await upgrade(client)
            acknowledged: dict[str, int] = {}
            begun: dict[str, str] = {}
            is_over = asyncio.Event()

            async def work(caller: int) -> None:
                number = 0
                while not is_over.is_set():
                    number += 1
                    name = f"{caller}-{number}"
                    acknowledged[name] = await client.append("/tape/order/paid/1", {"name": name})
                    while name not in begun:
                        try:
                            begun[name] = (await client.begin_run(**RUN | {"invocation_id": name})).run_id
                        except ServerUnreachable:
                            await asyncio.sleep(0.05)

            callers = [asyncio.create_task(work(caller)) for caller in range(16)]
            await until(lambda: len(acknowledged) > 100 and client._channel.is_upgraded)
            server.kill()
            await asyncio.to_thread(server.start, address)
            done = len(acknowledged)
            await until(lambda: len(acknowledged) > done + 50)
            is_over.set()
            await asyncio.gather(*callers)
            entries: dict[str, int] = {}
            head = (await client.head()).global_seq
            async for batch in client.follow_batches("/tape/order/**"):
                for entry in batch.entries:
                    name = entry.payload_json.partition('"name":"')[2].partition('"')[0]
                    assert name not in entries, "appended twice"
                    entries[name] = entry.global_seq
                if batch.position >= head:
                    break
            assert entries == acknowledged
            runs = {each.invocation_id: each.run_id for each in (await client.list_runs(limit=10_000)).runs}
            assert runs == begun


def test_the_synchronous_client_changes_too(tmp_path: Path) -> None:
    assert "TAPE_TRANSPORT" not in os.environ
    with ServerProcess(f"sqlite:{tmp_path / 'tape.db'}") as server, TapeClient(server.url) as client:
        while not client._client._channel.is_upgraded:
            client.head()
        assert client.append("/tape/order/paid/1") == 1
        assert client.begin_run(**RUN).run_id
