"""Outages of a downstream: what reaches it when it is back, judged by the downstream itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tape.playbooks.worker import work
from tape.server.server import Server
from tests.broker_services import NatsServer
from tests.brokers.rigs import Rig, nats_rig
from tests.services import free_port
from tests.subscriptions.runtime.test_supervisor import entries, put, subscribe, until

KEYS = 5
pytestmark = pytest.mark.usefixtures("loopback_allowed")


class Shop:
    """An HTTP service that can be away. It writes down what it is sent, by idempotency key."""

    def __init__(self) -> None:
        self.port = free_port()
        self.received: list[tuple[str, dict[str, Any]]] = []
        self.refused: set[int] = set()
        self._server: ThreadingHTTPServer | None = None

    def open(self) -> None:
        shop = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status = 503 if body["n"] in shop.refused else 200
                if status == 200:
                    shop.received.append((self.headers["Idempotency-Key"], body))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    @property
    def numbers(self) -> list[int]:
        """The numbers of the messages that reached it, each once, in the order of their arrival."""
        return list(dict.fromkeys(body["n"] for _, body in self.received))


@pytest.fixture(scope="module")
def nats_server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture
async def rig(nats_server: NatsServer) -> Rig:
    return await nats_rig(nats_server)


@pytest.fixture
def shop() -> Iterator[Shop]:
    shop = Shop()
    yield shop
    shop.close()


@contextlib.asynccontextmanager
async def working(server: Server, pool: str) -> AsyncIterator[None]:
    stop = threading.Event()
    task = asyncio.create_task(work(f"tape://{server.grpc_address}", pool=pool, concurrency=8, stop=stop))
    try:
        yield
    finally:
        stop.set()
        await task


async def deliver(server: Server, rig: Rig, shop: Shop, **spool: Any) -> None:
    """A subscription whose runs post their message to the shop."""
    step = {
        "step": "post",
        "tool": {
            "kind": "http",
            "method": "POST",
            "url": f"http://127.0.0.1:{shop.port}/orders",
            "json": {"n": "{{ message.data.n }}", "key": "{{ message.data.key }}"},
        },
    }
    await subscribe(server, rig, dispatch={"playbook": "domain/post", "execution_pool": "orders"}, spool=spool)
    await put(server, "domain/post", {"kind": "Playbook", "workflow": [step]})


def message(number: int) -> bytes:
    return json.dumps({"n": number, "key": f"k{number % KEYS}"}).encode()


def check(shop: Shop, count: int, *, in_order: bool) -> None:
    assert sorted(shop.numbers) == list(range(count)), "every message reached the downstream"
    for key in range(KEYS) if in_order else ():
        of_key = [number for number in shop.numbers if number % KEYS == key]
        assert of_key == sorted(of_key), f"the order of k{key}"
    runs = {name.split("/")[0] for name, _ in shop.received}
    assert len(runs) == count, "one run for each message"


SPOOLS = {
    "off": {"mode": "off"},
    "buffer_and_ack": {"mode": "buffer_and_ack", "backend": "local_disk"},
    "hybrid": {"mode": "hybrid", "backend": "local_disk"},
}


@pytest.mark.parametrize("mode", SPOOLS)
async def test_what_is_sent_while_the_downstream_is_away_reaches_it_once(
    server: Server, rig: Rig, shop: Shop, tmp_path: Path, mode: str
) -> None:
    spool = SPOOLS[mode] | ({"path": str(tmp_path / "spool")} if mode != "off" else {})
    circuit = {"trip_after": 3, "probe_after_ms": 500}
    await deliver(server, rig, shop, ordering="per_key", ordering_key="key", circuit=circuit, **spool)
    shop.open()
    async with working(server, "orders"):
        for number in range(10):
            await rig.feed(message(number))
        await until(lambda: asyncio.sleep(0, len(shop.numbers) == 10))
        shop.close()
        for number in range(10, 40):  # steady traffic while nobody is there
            await rig.feed(message(number))
            await asyncio.sleep(0.02)
        await until(lambda: entries(server, "circuit.opened"))
        for number in range(40, 60):
            await rig.feed(message(number))
        shop.open()
        await until(lambda: asyncio.sleep(0, len(shop.numbers) == 60))
        await until(lambda: entries(server, "circuit.closed"))
    # What is held at its source comes back in the order in which NATS delivers it again.
    check(shop, 60, in_order=mode == "buffer_and_ack")


async def test_a_circuit_does_not_close_while_nobody_answers(
    server: Server, rig: Rig, shop: Shop, tmp_path: Path
) -> None:
    circuit = {"trip_after": 3, "probe_after_ms": 100, "probe_timeout_ms": 2_000}
    await deliver(server, rig, shop, mode="buffer_and_ack", backend="local_disk", path=str(tmp_path), circuit=circuit)
    async with working(server, "orders"):
        for number in range(8):
            await rig.feed(message(number))
        await until(lambda: entries(server, "circuit.opened"))

        async def has_probed() -> bool:
            return len(await entries(server, "circuit.opened")) >= 3  # each failed probe opens it again

        await until(has_probed)
        assert await entries(server, "circuit.closed") == []
        assert await entries(server, "message.replayed") == []
        shop.open()
        await until(lambda: asyncio.sleep(0, len(shop.numbers) == 8))
    assert len({name for name, _ in shop.received}) == 8


async def test_the_attempts_of_a_message_that_alone_fails_count_and_it_holds_no_other(
    server: Server, rig: Rig, shop: Shop
) -> None:
    await deliver(server, rig, shop, ordering="none", circuit={"trip_after": 5, "probe_after_ms": 100})
    shop.open()
    shop.refused = {3}

    async def has_counted() -> bool:
        rows = await server.database.read(lambda reader: reader.query("SELECT max(attempts) FROM tape_tasks"))
        return (rows[0][0] or 0) >= 2

    async with working(server, "orders"):
        number = 0
        while not await has_counted():
            await rig.feed(message(number))
            number += 1
            await asyncio.sleep(0.2)
        await until(lambda: asyncio.sleep(0, len(shop.numbers) == number - 1))
    assert 3 not in shop.numbers
    assert await entries(server, "circuit.opened") == []
