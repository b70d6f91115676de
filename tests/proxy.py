"""A TCP proxy that is the network between two processes, and fails as networks do."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Literal, TypeVar

from tests.services import free_port

T = TypeVar("T")

# passes: all is well. refuses: connections are reset, new ones refused. black hole: nothing arrives anywhere, and no
# connection ends. half open: connections of before are black holes for ever, new ones pass. deaf: requests arrive,
# answers do not. resets answers: requests arrive, and the connection is reset in place of the answer, so that a commit
# is carried out and its caller gets an error.
Network = Literal["passes", "refuses", "black hole", "half open", "deaf", "resets answers"]
CHUNK = 1 << 16


class FaultProxy:
    """Listens on `address`, passes on to a TCP address or a Unix socket, on a thread of its own."""

    def __init__(self, target: tuple[str, int] | Path) -> None:
        self._target = target
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._links: set[_Link] = set()
        self._server: asyncio.Server | None = None
        self._state: Network = "passes"
        self._delay_s = 0.0

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        self._run(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._state = "passes"
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def become(self, network: Network, delay_s: float = 0.0) -> None:
        """Change the network for connections of now and later; each chunk is late by the delay."""
        self._run(self._become(network, delay_s))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _become(self, network: Network, delay_s: float) -> None:
        self._state, self._delay_s = network, delay_s
        if network == "refuses":
            await self._close()
            return
        if self._server is None:
            await self._listen()
        if network == "half open":
            for link in self._links:
                link.is_dead = True

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port, limit=CHUNK)

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await _take_turns()  # connections that are being accepted become links
        for link in list(self._links):
            link.is_dead = False
            link.reset()
        # Also connections that are being accepted: each has a task, and none may be left open.
        while self._state != "refuses" and asyncio.all_tasks() - {asyncio.current_task()}:
            for link in list(self._links):
                link.reset()
            await asyncio.sleep(0.01)
        await _take_turns()  # transports of the last ones are closed

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(writer)
        self._links.add(link)
        try:
            while self._state == "black hole":  # the handshake is the kernel's; nothing else gets through
                await asyncio.sleep(0.02)
            if isinstance(self._target, Path):
                opened = await asyncio.open_unix_connection(self._target)
            else:
                opened = await asyncio.open_connection(*self._target)
            link.far = opened[1]
            there = asyncio.create_task(self._pump(link, reader, opened[1], is_answer=False))
            back = asyncio.create_task(self._pump(link, opened[0], writer, is_answer=True))
            await asyncio.wait([there, back], return_when=asyncio.FIRST_COMPLETED)
            there.cancel()
            back.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
        except OSError:
            pass
        finally:
            link.reset()
            self._links.discard(link)

    async def _pump(
        self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                while link.is_dead or self._state == "black hole" or (self._state == "deaf" and is_answer):
                    await asyncio.sleep(0.02)
                if self._state == "resets answers" and is_answer:
                    link.reset()
                    return
                writer.write(data)
                await writer.drain()
        while link.is_dead or self._state == "black hole":  # the end of a connection does not arrive either
            await asyncio.sleep(0.02)


async def _take_turns() -> None:
    """Let the event loop run what it has scheduled."""
    for _ in range(10):
        await asyncio.sleep(0)


class _Link:
    """One connection through the proxy."""

    def __init__(self, near: asyncio.StreamWriter) -> None:
        self._near = near
        self.far: asyncio.StreamWriter | None = None
        self.is_dead = False

    def reset(self) -> None:
        """End it on both sides, with a RST."""
        for writer in (self._near, self.far):
            if writer is not None:
                end: socket.socket = writer.get_extra_info("socket")
                with contextlib.suppress(OSError):
                    if end.family == socket.AF_INET:
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
