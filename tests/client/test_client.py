"""The clients: coalescing, retries, reconnecting, and the synchronous face."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from tape import AsyncTapeClient, Draft, TapeClient
from tape.client.append_batcher import AppendBatcher
from tape.client.channel import target_of
from tape.errors import (
    InvalidConfig,
    InvalidInput,
    InvalidJson,
    InvalidSubject,
    LeaseHeld,
    RpcFailed,
    ServerUnreachable,
    StoreUnavailable,
)
from tape.model.payload import to_json
from tape.server.server import Server
from tests.conftest import settings_for


async def test_concurrent_appends_share_messages(server: Server, client: AsyncTapeClient) -> None:
    numbers = await asyncio.gather(*(client.append("/tape/a/b", {"n": n}) for n in range(500)))
    assert sorted(numbers) == list(range(1, 501))
    commits = server.metrics.registry.get_sample_value("tape_commits_total")
    assert commits is not None
    assert commits < 100  # a server commits for itself, too


async def test_one_callers_order_is_kept(client: AsyncTapeClient) -> None:
    numbers = [await client.append("/tape/a/b", {"n": n}) for n in range(10)]
    assert numbers == sorted(numbers)


async def test_a_bad_append_fails_alone_although_it_travelled_with_others(client: AsyncTapeClient) -> None:
    results = await asyncio.gather(
        client.append("/tape/a/b"), client.append("nonsense"), client.append("/tape/a/b"), return_exceptions=True
    )
    assert isinstance(results[1], InvalidSubject)
    assert sorted(r for r in results if isinstance(r, int)) == [1, 2]
    assert (await client.head()).global_seq == 2


class Flaky:
    """A server that loses answers."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.requests: list[str] = []

    async def __call__(self, drafts: object, request_id: str, first_write_wins: bool) -> list[int]:
        self.requests.append(request_id)
        if len(self.requests) <= self.failures:
            raise StoreUnavailable("for a moment")
        return [7]


async def test_a_retry_repeats_the_request_id_so_that_nothing_is_appended_twice() -> None:
    server = Flaky(failures=2)
    assert await AppendBatcher(server).append([Draft(subject="/tape/a/b")]) == [7]
    assert len(server.requests) == 3
    assert len(set(server.requests)) == 1


async def test_an_unclear_failure_is_not_sent_again_under_a_new_id() -> None:
    requests: list[str] = []

    async def broken(drafts: object, request_id: str, first_write_wins: bool) -> list[int]:
        requests.append(request_id)
        raise RpcFailed("it is not known whether it was carried out")

    batcher = AppendBatcher(broken)
    results = await asyncio.gather(
        *(batcher.append([Draft(subject="/tape/a/b")]) for _ in range(3)), return_exceptions=True
    )
    assert all(isinstance(result, RpcFailed) for result in results)
    assert len(requests) == 1


async def test_the_last_error_is_raised_when_the_deadline_has_passed() -> None:
    server = Flaky(failures=100)
    with pytest.raises(StoreUnavailable, match="for a moment"):
        await AppendBatcher(server, timeout_s=0.2).append([Draft(subject="/tape/a/b")])
    assert len(server.requests) > 1
    assert len(set(server.requests)) == 1


async def test_a_server_that_is_not_there_is_named_with_a_remedy() -> None:
    async with AsyncTapeClient("tape://127.0.0.1:1", append_timeout_s=0.1) as client:
        with pytest.raises(ServerUnreachable, match=r"tape://127.0.0.1:1 .* tape serve"):
            await client.append("/tape/a/b")
        with pytest.raises(ServerUnreachable):
            await client.head()


async def test_following_survives_a_restart_of_the_server(store_url: str) -> None:
    server = Server(settings_for(store_url))
    await server.start()
    address = server.grpc_address
    client = AsyncTapeClient(f"tape://{address}")
    seen: list[int] = []

    async def follow() -> None:
        async for entry in client.follow("/tape/a/**"):
            seen.append(entry.global_seq)
            if len(seen) == 30:
                return

    following = asyncio.create_task(follow())
    for _ in range(3):
        for _ in range(10):
            await client.append("/tape/a/b")
        await server.stop()
        server = Server(settings_for(store_url, listen=address))
        await server.start()
    async with asyncio.timeout(120):
        await following
    assert seen == list(range(1, 31))
    await client.close()
    await server.stop()


async def test_a_server_that_is_slow_to_greet_is_waited_for(server: Server) -> None:
    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
        writer.close()

    async def greet_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(1)  # longer than a client waits between two attempts
        host, _, port = server.grpc_address.rpartition(":")
        answers, asks = await asyncio.open_connection(host, int(port))
        await asyncio.gather(pass_on(reader, asks), pass_on(answers, writer))

    async with await asyncio.start_server(greet_late, "127.0.0.1", 0) as slow:
        port = slow.sockets[0].getsockname()[1]
        async with AsyncTapeClient(f"tape://127.0.0.1:{port}") as client:
            assert await client.append("/tape/a/b") == 1


async def test_following_without_reconnecting_raises(server: Server, client: AsyncTapeClient) -> None:
    await client.append("/tape/a/b")
    stream = client.follow(reconnect=False)
    await anext(stream)
    waiting = asyncio.ensure_future(anext(stream))
    await server.stop()
    with pytest.raises(Exception, match=r"shutting down|cannot be reached"):
        await waiting


async def test_the_synchronous_client_does_the_same(server: Server) -> None:
    def work() -> None:
        with TapeClient(f"tape://{server.grpc_address}") as client:
            assert client.append("/tape/a/b", {"n": 1}, run_id="r1", tenant="acme") == 1
            assert client.append_many([Draft(subject="/tape/a/c")] * 2) == [2, 3]
            assert client.head().global_seq == 3
            entries = client.follow("/tape/a/**")
            assert [next(entries).global_seq for _ in range(3)] == [1, 2, 3]
            entries.close()
            assert next(client.subscribe_by_subject(subject_pattern="/tape/a/c")).global_seq == 2
            assert next(client.subscribe_events(kind="a")).run_id == "r1"
            assert next(client.subscribe_run(run_id="r1")).seq == 1
            assert client.write_value(namespace="n", key="k", value_json="1").version == 1
            assert client.get_value(namespace="n", key="k").value.value_json == "1"
            assert next(client.watch_value(namespace="n", key="k")).value.version == 1
            assert client.delete_value(namespace="n", key="k").version == 2
            with pytest.raises(InvalidInput):
                client.append("/tape/a/b", kind="x")
            threads = [threading.Thread(target=client.append, args=("/tape/a/d",)) for _ in range(20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert client.head().global_seq == 25
        client.close()

    await asyncio.to_thread(work)


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("tape://localhost:7878", "localhost:7878"),
        ("tape://localhost", "localhost:7878"),
        ("127.0.0.1:9", "127.0.0.1:9"),
        ("grpc://host:1/", "host:1"),
    ],
)
def test_addresses_have_several_spellings(url: str, target: str) -> None:
    assert target_of(url) == target


@pytest.mark.parametrize("url", ["http://localhost:1", "tape://", ""])
def test_a_bad_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidConfig, match="must look like tape://localhost:7878"):
        target_of(url)


def test_payloads_become_json_and_nothing_is_silently_changed() -> None:
    assert to_json(None) == "{}"
    assert to_json({"a": [1, 2.5, "é", None, True]}) == '{"a":[1,2.5,"é",null,true]}'
    for bad in (float("nan"), {"a": float("inf")}, {"a": object()}):
        with pytest.raises(InvalidJson):
            to_json(bad)


async def test_one_connection_speaks_for_several_owners(client: AsyncTapeClient) -> None:
    ids = {"app_name": "app", "user_id": "ann", "session_id": "s1", "invocation_id": "i1"}
    mine, other = client.with_lease_owner("me"), client.with_lease_owner("worker-2")
    run_id = (await mine.begin_run(**ids, lease_owner="me")).run_id
    with pytest.raises(LeaseHeld, match="worker-2"):
        await other.record_decision(run_id=run_id, decision_index=0)
    await mine.record_decision(run_id=run_id, decision_index=0)


async def test_speaking_as_is_a_deprecated_name_of_with_lease_owner(client: AsyncTapeClient) -> None:
    with pytest.warns(DeprecationWarning, match="with_lease_owner"):
        other = client.speaking_as("worker-2")
    assert other._channel.lease_owner == "worker-2"
