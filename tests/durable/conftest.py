"""A server on a thread of its own, for code that does not know of asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from tape import TapeClient
from tape.server.server import Server
from tests.conftest import settings_for


class ServerThread:
    """A server in this process, on a loop of its own."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tape-server")
        self._thread.start()
        self._server: Server | None = None
        self._run(self._start())

    @property
    def url(self) -> str:
        """Where it can be reached."""
        assert self._server is not None
        return f"tape://{self._server.grpc_address}"

    def close(self) -> None:
        """Stop it."""
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: object) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()  # type: ignore[arg-type]

    async def _start(self) -> None:
        self._server = Server(settings_for(self._store))
        await self._server.__aenter__()

    async def _stop(self) -> None:
        assert self._server is not None
        await self._server.__aexit__(None, None, None)


@pytest.fixture
def url(store_url: str) -> Iterator[str]:
    """The address of a server on each kind of database."""
    server = ServerThread(store_url)
    yield server.url
    server.close()


@pytest.fixture
def observer(url: str) -> Iterator[TapeClient]:
    """A client without a lease owner."""
    with TapeClient(url) as client:
        yield client
