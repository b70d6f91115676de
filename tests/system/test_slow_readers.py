"""A thousand clients that never read: the server's memory stays flat and others are served."""

from __future__ import annotations

import asyncio
import resource
import socket
from pathlib import Path

import psutil

from tape.client import AsyncTapeClient
from tests.services import ServerProcess
from tests.web import Stream

# Each is an open file of the server and one of ours.
READERS = min(1_000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 200)
EVENTS = 4_000


def memory(server: ServerProcess) -> int:
    assert server.process is not None
    return int(psutil.Process(server.process.pid).memory_info().rss)


def connect(address: str, count: int) -> list[socket.socket]:
    host, _, port = address.rpartition(":")
    sockets = []
    for _ in range(count):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((host, int(port)))
        client.sendall(f"GET /v1/events?type=load.made HTTP/1.1\r\nhost: {address}\r\n\r\n".encode())
        sockets.append(client)
    for client in sockets:
        assert client.recv(12) == b"HTTP/1.1 200"
    return sockets


async def fill(server: ServerProcess) -> None:
    async with AsyncTapeClient(server.url) as client:
        for _ in range(EVENTS // 200):
            await asyncio.gather(*(client.append("/tape/load/made", {"fill": "x" * 4000}) for _ in range(200)))


def test_many_stalled_readers_cost_little_and_do_not_delay_others(tmp_path: Path) -> None:
    flags = ["--max-subscribers-per-session", "2000", "--idle-timeout-s", "600"]
    with ServerProcess(f"sqlite:{tmp_path / 'tape.db'}", *flags) as server:
        address = server.http_url.removeprefix("http://")
        asyncio.run(fill(server))  # what a busy server needs anyway
        sockets = connect(address, READERS)
        try:
            asyncio.run(fill(server))
            first = memory(server)
            asyncio.run(fill(server))

            async def read_all() -> list[int | None]:
                async with Stream(address, x_harbor_event_type="other.made") as stream:
                    assert (await stream.frame()) is not None
                    async with AsyncTapeClient(server.url) as client:
                        await client.append("/tape/other/made")
                    return await stream.ids(1)

            assert asyncio.run(read_all()) == [3 * EVENTS + 1]
            # The buffers of all together were about full after the first burst. Kept for each, the second would add
            # sixteen gigabytes.
            assert memory(server) - first < 256 << 20
        finally:
            for client in sockets:
                client.close()
