"""A gateway and its server, as processes that are killed while deliveries come in."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tape.store import open_database
from tests.forked import Forked, tape
from tests.server.test_ingress import PLAYBOOK, PUSH, SECRET, TOKEN
from tests.services import ServerProcess, difference
from tests.web import call

SENDERS = 8
EACH = 30


class GatewayProcess:
    """`tape gateway` in a process of its own."""

    def __init__(self, server_url: str) -> None:
        self._server_url = server_url
        self.address = "127.0.0.1:0"
        self.process: Forked | None = None

    def __enter__(self) -> GatewayProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, where it was before."""
        arguments = ["gateway", "--server", self._server_url, "--listen", self.address, "--log-level", "error"]
        self.process = Forked(arguments)
        assert self.process.stdout is not None
        greeting = ""
        while "Ctrl-C" not in greeting:
            line = self.process.stdout.readline()
            assert line, f"the gateway ended at once: {greeting}"
            greeting += line
        self.address = re.findall(r"http://([^/]+)/ingress", greeting)[0]

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()


class Sender:
    """Sends each of its messages until it is accepted."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.accepted: dict[str, str] = {}
        self.failures: list[str] = []

    async def send(self, message_id: str) -> None:
        body = json.dumps({"id": message_id}).encode()
        digest = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        headers = {"x_signature": digest, "x_message_id": message_id}
        while True:
            try:
                answer = await call(self.address, "POST", "/ingress/orders", body, **headers)
            except (OSError, EOFError) as error:
                self.failures.append(type(error).__name__)
            else:
                if answer.status == 202:
                    self.accepted[message_id] = answer.json()["execution_id"]
                    return
                self.failures.append(answer.json()["reason"])
            await asyncio.sleep(0.05)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A server process with a listener, and a gateway process before it."""
    monkeypatch.setenv("TAPE_INTERNAL_API_TOKEN", TOKEN)
    store, key = f"sqlite:{tmp_path / 'tape.db'}", str(tmp_path / "wallet.key")
    made = tape("wallet", "set", "orders_secret", "--store", store, "--wallet-key", key, stdin=SECRET)
    assert made.returncode == 0, made.stderr
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess(store, "--wallet-key", key))
        gateway = stack.enter_context(GatewayProcess(server.http_url))
        yield store, server, gateway


async def api(server: ServerProcess, path: str, body: Any) -> Any:
    answer = await call(server.http_url.removeprefix("http://"), "POST", path, body, authorization=f"Bearer {TOKEN}")
    assert answer.status == 200, answer.body
    return answer.json()


async def open_listener(server: ServerProcess) -> None:
    await api(server, "/api/catalog/register", {"content": PUSH})
    status = await api(server, "/api/subscriptions/register", {"path": "subscriptions/orders"})
    await api(server, f"/api/subscriptions/{status['subscription_id']}/activate", {"force": True})


async def test_every_delivery_is_one_run_whatever_is_killed_meanwhile(stage: Any) -> None:
    store, server, gateway = stage
    for path in ("domain/ingest_order", "domain/fraud"):
        await api(server, "/api/catalog/register", {"content": PLAYBOOK.format(path=path)})
    await open_listener(server)
    sender = Sender(gateway.address)
    total = SENDERS * EACH
    killed = [asyncio.Event(), asyncio.Event()]
    # Every sender has messages left to send during the outage.
    waits = {EACH // 2: killed[0], EACH - 1: killed[1]}

    async def send(number: int) -> None:
        for n in range(EACH):
            if n in waits:
                await waits[n].wait()
            await sender.send(f"m{number}-{n}")

    async def reach(count: int) -> None:
        while len(sender.accepted) < count:
            await asyncio.sleep(0.005)

    async def harm() -> None:
        listen, http_listen = server.url.removeprefix("tape://"), server.http_url.removeprefix("http://")
        for count, is_killed in zip((total // 5, total * 3 // 5), killed, strict=True):
            await reach(count)
            await asyncio.to_thread(server.kill)
            failures = len(sender.failures)
            is_killed.set()
            while len(sender.failures) == failures:  # a sender has failed
                await asyncio.sleep(0.005)
            await asyncio.to_thread(server.start, listen, http_listen)
        await reach(total * 4 // 5)
        await asyncio.to_thread(gateway.kill)
        await asyncio.to_thread(gateway.start)

    async with asyncio.timeout(240):
        await asyncio.gather(harm(), *map(send, range(SENDERS)))
    assert "dispatch_error" in sender.failures
    await asyncio.to_thread(server.kill)
    runs = await _all_runs(store)
    assert not difference(((message, run) for message, found in runs.items() for run in found), sender.accepted.items())
    assert len(runs) == total


async def test_six_signed_webhooks_are_completed_by_a_worker_of_their_pool(stage: Any) -> None:
    _, server, gateway = stage
    await api(server, "/api/catalog/register", {"content": PLAYBOOK.format(path="domain/ingest_order")})
    await open_listener(server)
    sender = Sender(gateway.address)
    for n in range(6):
        await sender.send(f"m{n}")
    worker = Forked(["worker", "--pool", "subscription", "--url", server.url])
    try:
        async with asyncio.timeout(120):
            for execution_id in sender.accepted.values():
                while (await show(server, execution_id))["status"] != "TERMINAL":
                    await asyncio.sleep(0.05)
    finally:
        worker.kill()
    shown = [await show(server, execution_id) for execution_id in sender.accepted.values()]
    assert {(each["pool"], each["subscription"]) for each in shown} == {("subscription", "subscriptions/orders")}
    assert sorted(each["message_id"] for each in shown) == [f"m{n}" for n in range(6)]


async def show(server: ServerProcess, execution_id: str) -> Any:
    address = server.http_url.removeprefix("http://")
    return (await call(address, "GET", f"/api/executions/{execution_id}", authorization=f"Bearer {TOKEN}")).json()


async def _all_runs(store: str) -> dict[str, list[str]]:
    """The runs of each message."""
    found: dict[str, list[str]] = {}
    async with open_database(store) as database:
        rows = await database.read(lambda reader: reader.query("SELECT run_id, labels_json FROM tape_runs"))
    for run_id, labels in rows:
        found.setdefault(json.loads(labels)["tape.message_id"], []).append(run_id)
    return found
