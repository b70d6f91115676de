"""A server on each kind of database, reached by ordinary code, and registries that no other test has filled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from tape import connectors
from tape.client import TapeClient
from tape.durable import registry
from tape.server.server import Server
from tests.conftest import settings_for


@pytest.fixture
def url(store_url: str) -> Iterator[str]:
    """The address of a server that runs on a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def wait(work):  # type: ignore[no-untyped-def]
        return asyncio.run_coroutine_threadsafe(work, loop).result(120)

    server = Server(settings_for(store_url))
    wait(server.__aenter__())
    try:
        yield f"tape://{server.grpc_address}"
    finally:
        wait(server.__aexit__(None, None, None))
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def client(url: str) -> Iterator[TapeClient]:
    """A client of that server."""
    with TapeClient(url) as client:
        yield client


@pytest.fixture(autouse=True)
def registries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is registered when a test begins."""
    for name in ("_compensators", "_tool_compensators", "_status_checks"):
        monkeypatch.setattr(registry, name, {})
    connectors.clear()
    yield
    connectors.clear()
