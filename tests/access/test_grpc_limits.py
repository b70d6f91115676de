"""What a client may send over gRPC before it is authenticated, and how bytes that are no message are answered."""

from __future__ import annotations

import asyncio
import logging
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from tape.client import AsyncTapeClient
from tape.errors import Overloaded, PayloadTooLarge
from tape.model.entry import Draft
from tape.proto import tape_pb2 as pb
from tape.server.grpc.methods import UnaryCalls
from tape.server.server import Server
from tests.conftest import settings_for

GARBAGE = b"\xff\xff\xff\xff\xff"
METHODS = pb.DESCRIPTOR.services_by_name["Tape"].methods
STANDARD = [
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
]


@pytest.fixture
async def server(sqlite_url: str) -> AsyncIterator[Server]:
    async with Server(settings_for(sqlite_url)) as server:
        yield server


async def send(channel: grpc.aio.Channel, path: str, *requests: bytes) -> grpc.StatusCode:
    """The status of a call that sends raw bytes; every kind of call looks the same on the wire."""
    call = channel.stream_stream(path)(iter(requests), timeout=60)
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code()
    return await call.code()


async def test_undecodable_bytes_are_an_invalid_argument_of_every_rpc(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with grpc.aio.insecure_channel(server.grpc_address) as channel:
            for path in [*(f"/tape.v1.Tape/{method.name}" for method in METHODS), *STANDARD]:
                assert await send(channel, path, GARBAGE) is grpc.StatusCode.INVALID_ARGUMENT, path
            paths = ["/tape.v1.Tape/Append"] * 500
            found = await asyncio.gather(*(send(channel, path, GARBAGE) for path in paths))
            assert set(found) == {grpc.StatusCode.INVALID_ARGUMENT}
    lines = [record for record in caplog.records if "Protobuf" in record.message]
    assert 1 <= len(lines) < 100
    assert all(record.exc_info is None for record in caplog.records)
    assert "Traceback" not in caplog.text


async def test_requests_before_an_undecodable_one_of_a_stream_are_answered(server: Server) -> None:
    good = pb.AppendRequest(drafts=[pb.Draft(subject="/tape/a/b")]).SerializeToString()
    async with grpc.aio.insecure_channel(server.grpc_address) as channel:
        call = channel.stream_stream("/tape.v1.Tape/AppendStream")(iter([good, GARBAGE]), timeout=60)
        assert pb.AppendReply.FromString(await call.read()).global_seqs == [1]
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call.read()
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_standard_services_still_answer(server: Server) -> None:
    async with grpc.aio.insecure_channel(server.grpc_address) as channel:
        assert await send(channel, "/grpc.health.v1.Health/Check", b"") is grpc.StatusCode.OK
        assert await send(channel, STANDARD[2], b"") is grpc.StatusCode.OK


async def test_a_message_beyond_the_limit_is_refused_and_named_so_by_the_client(server: Server) -> None:
    half = Draft(subject="/tape/a/b", payload_json='"' + "x" * 1_000_000 + '"')
    async with AsyncTapeClient(server.grpc_address) as client:
        with pytest.raises(PayloadTooLarge, match="grpc_max_message_bytes"):
            await client.append_many([half] * 5)
        assert await client.append_many([half] * 3) == [1, 2, 3]


async def test_a_message_beyond_the_limit_does_not_disturb_other_appends(server: Server) -> None:
    half = Draft(subject="/tape/a/large", payload_json='"' + "x" * 1_000_000 + '"')
    async with AsyncTapeClient(server.grpc_address) as client:
        found = await asyncio.gather(
            *(client.append("/tape/a/b", {"n": n}) for n in range(600)),
            client.append_many([half] * 5),
            *(client.append("/tape/a/b", {"n": n}) for n in range(600)),
            return_exceptions=True,
        )
        assert isinstance(found.pop(600), PayloadTooLarge)
        assert sorted(map(int, found)) == list(range(1, 1_201))  # type: ignore[call-overload]
        assert (await client.head()).global_seq == 1_200


async def test_concurrent_appends_of_long_texts_are_sent_in_messages_below_the_limit(server: Server) -> None:
    text = "語" * 60_000
    async with AsyncTapeClient(server.grpc_address) as client:
        found = await asyncio.gather(*(client.append("/tape/a/b", {"t": text}) for _ in range(40)))
    assert sorted(found) == list(range(1, 41))


async def test_a_server_that_accepts_larger_payloads_accepts_larger_messages(sqlite_url: str) -> None:
    async with Server(settings_for(sqlite_url, max_payload_bytes=6 << 20)) as server:
        async with AsyncTapeClient(server.grpc_address) as client:
            assert await client.append("/tape/a/b", "x" * (5 << 20)) == 1


async def test_metadata_beyond_64_kib_is_refused(server: Server) -> None:
    async with grpc.aio.insecure_channel(server.grpc_address) as channel:
        head = channel.unary_unary("/tape.v1.Tape/GetHead")
        await head(b"", metadata=[("a", "x" * 40_000)])
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await head(b"", metadata=[("a", "x" * 80_000)])
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await head(b"")


async def test_calls_beyond_the_limit_are_refused_and_others_go_on(sqlite_url: str) -> None:
    async with Server(settings_for(sqlite_url, grpc_max_concurrent_calls=2)) as server:
        release, entered = asyncio.Event(), asyncio.Semaphore(0)
        original = server.journal.head

        async def slow_head() -> object:
            entered.release()
            await release.wait()
            return await original()

        server.journal.head = slow_head  # type: ignore[method-assign,assignment]
        async with AsyncTapeClient(server.grpc_address) as client:
            waiting = [asyncio.create_task(client.head()) for _ in range(2)]
            for _ in waiting:
                await entered.acquire()
            with pytest.raises(Overloaded, match="grpc_max_concurrent_calls"):
                await client.head()
            release.set()
            await asyncio.gather(*waiting)
            await client.head()


def test_a_refused_call_is_not_counted_as_one_that_ended() -> None:
    calls = UnaryCalls(1)
    calls.enter()
    for _ in range(3):
        with pytest.raises(Overloaded):
            calls.enter()
    calls.leave()
    calls.enter()


FLOOD = """
import grpc, sys
options = [("grpc.max_send_message_length", -1)]
for _ in range(12):
    with grpc.insecure_channel(sys.argv[1], options=options) as channel:
        try:
            channel.unary_unary("/tape.v1.Tape/Append")(bytes(70 << 20), timeout=60)
        except grpc.RpcError as error:
            print(error.code().name)
"""


async def test_12_refused_calls_of_70_mib_leave_no_memory_behind(server: Server) -> None:
    async with AsyncTapeClient(server.grpc_address) as client:
        await client.append("/tape/a/b")
    before = resident_bytes()
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", FLOOD, server.grpc_address], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["RESOURCE_EXHAUSTED"] * 12
    assert resident_bytes() - before < 50 << 20


def resident_bytes() -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10
