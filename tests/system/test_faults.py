"""The database goes away, the disk fills up: errors are typed, nothing is lost, no restart is needed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tape.client import AsyncTapeClient, rpcs
from tape.client.channel import GrpcChannel
from tape.errors import StoreFull, StoreUnavailable
from tape.journal.verifier import verify
from tape.model.entry import Draft
from tape.proto import tape_pb2 as pb
from tape.server.server import Server
from tests.conftest import settings_for
from tests.services import Postgres

DISK_BYTES = 24 << 20


async def test_when_postgres_goes_away_appends_fail_at_once_and_streams_resume_when_it_is_back() -> None:
    with Postgres() as postgres:
        async with Server(settings_for(postgres.url())) as server:
            url = f"tape://{server.grpc_address}"
            channel = GrpcChannel(url)
            request = pb.AppendRequest(drafts=[pb.Draft(subject="/tape/a/b")])
            async with AsyncTapeClient(url) as client:
                streams = [client.follow(reconnect=False), client.subscribe_by_subject(subject_pattern="")]
                await client.append("/tape/a/b")
                for stream in streams:
                    assert (await anext(stream)).global_seq == 1

                await asyncio.to_thread(postgres.stop)
                for _ in range(3):
                    with pytest.raises(StoreUnavailable, match="Is it running"):
                        async with asyncio.timeout(60):
                            await channel.call(rpcs.APPEND, request)

                await asyncio.to_thread(postgres.start)
                await until_appended(client, 2)
                await client.append("/tape/a/b")
                for stream in streams:
                    async with asyncio.timeout(120):
                        assert [(await anext(stream)).global_seq for _ in range(2)] == [2, 3]
                    await stream.aclose()  # type: ignore[attr-defined]
                assert await is_proven(server)
            await channel.close()


async def is_proven(server: Server) -> bool:
    """Whether the chain holds; a reader that has not been used since notices only now that its connection is gone."""
    async with asyncio.timeout(120):
        while True:
            with contextlib.suppress(StoreUnavailable):
                return (await server.database.read(verify)).ok


async def until_appended(client: AsyncTapeClient, expected: int) -> None:
    async with asyncio.timeout(120):
        while True:
            with contextlib.suppress(StoreUnavailable):
                assert await client.append("/tape/a/b") == expected
                return


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A small file system, mounted at a folder."""
    folder.mkdir()
    mounted = os.geteuid() == 0 and (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)], capture_output=True
        ).returncode
        == 0
    )
    if not mounted:
        pytest.skip("a small disk needs the right to mount one")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


async def test_a_full_disk_is_a_typed_error_and_free_space_resolves_it(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk):
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(DISK_BYTES * 3 // 4))
        async with Server(settings_for(f"sqlite:{disk / 'tape.db'}")) as server:
            journal = server.journal
            draft = Draft(subject="/tape/a/b", payload_json=f'"{"x" * 100_000}"')
            appended = 0

            async def fill() -> None:
                nonlocal appended
                for _ in range(1_000):
                    appended = (await journal.append([draft]))[-1]

            with pytest.raises(StoreFull, match="free disk space"):
                await fill()
            with pytest.raises(StoreFull):
                await journal.append([draft])
            ballast.unlink()
            assert list(await journal.append([draft])) == [appended + 1]
            assert (await server.database.read(verify)).ok


async def test_a_full_disk_reaches_the_client_as_what_it_is(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk):
        async with Server(settings_for(f"sqlite:{disk / 'tape.db'}")) as server:
            channel = GrpcChannel(f"tape://{server.grpc_address}")
            (disk / "ballast").write_bytes(bytes(DISK_BYTES * 3 // 4))
            request = pb.AppendRequest(drafts=[pb.Draft(subject="/tape/a/b", payload_json=f'"{"x" * 900_000}"')])
            with pytest.raises(StoreFull):
                await asyncio.gather(*(channel.call(rpcs.APPEND, request) for _ in range(100)))
            await channel.close()
