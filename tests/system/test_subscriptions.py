"""A runtime, its server and its broker die at any moment, and every message becomes a run; with dedup, exactly one."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from tape.subscriptions.api_client import Control
from tests.broker_services import NatsServer
from tests.forked import Forked
from tests.services import ServerProcess, difference, wait_for

PATH = "subscriptions/orders"
TOKEN = "internal-token-of-this-test"
PLAYBOOK = """
kind: Playbook
metadata: {path: domain/ingest}
workflow:
  - step: keep
    tool: {kind: value, value: "{{ input.n }}"}
"""


class Stream:
    """A stream with a consumer that delivers again what was not acknowledged within some seconds."""

    def __init__(self, server: NatsServer, ack_wait_s: float = 2) -> None:
        self.name = f"S{uuid.uuid4().hex[:8]}"
        self.url = f"nats://{server.address}"

        async def make(jetstream: Any) -> None:
            await jetstream.add_stream(name=self.name, subjects=[f"{self.name}.>"])
            await jetstream.add_consumer(self.name, durable_name="readers", ack_policy="explicit", ack_wait=ack_wait_s)

        self.do(make)

    def do(self, work: Any) -> Any:
        import nats

        async def connected() -> Any:
            connection = await nats.connect(self.url)
            try:
                return await work(connection.jetstream())
            finally:
                await connection.close()

        return asyncio.run(connected())

    def publish(self, numbers: range) -> None:
        async def send(jetstream: Any) -> None:
            for number in numbers:
                await jetstream.publish(f"{self.name}.orders", json.dumps({"n": number}).encode())

        self.do(send)

    def is_empty(self) -> bool:
        async def look(jetstream: Any) -> bool:
            info = await jetstream.consumer_info(self.name, "readers")
            return bool(info.num_pending == 0 and info.num_ack_pending == 0)

        return bool(self.do(look))


@contextmanager
def runtime(server: ServerProcess, *flags: str) -> Iterator[Forked]:
    process = Forked(["subscription", "run", PATH, "--server", server.http_url, *flags])
    try:
        yield process
    finally:
        process.kill()


def register(control: Control, stream: Stream, **spec: Any) -> None:
    document = {
        "kind": "Subscription",
        "metadata": {"path": PATH},
        "spec": {
            "source": "nats",
            "mode": "pull",
            "url": stream.url,
            "stream": stream.name,
            "consumer": "readers",
            "runtime": {"batch": 10, "timeout_ms": 500},
            "dispatch": {"playbook": "domain/ingest", "batch_dispatch": True},
            "spool": {"circuit": {"probe_after_ms": 500}},
            **spec,
        },
    }
    control.register_document(PLAYBOOK)
    control.register_document(json.dumps(document))


def rows(store: Path, where: str) -> list[Any]:
    """Columns of the journal, read beside the server."""
    connection = apsw.Connection(str(store), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return list(connection.execute(f"SELECT subject, payload_json FROM tape_journal WHERE {where}"))
    finally:
        connection.close()


def runs(store: Path) -> Counter[int]:
    """How many runs each message became."""
    return Counter(json.loads(payload)["payload"]["n"] for _, payload in rows(store, "kind = 'command'"))


def verbs(store: Path) -> set[str]:
    """The verbs of events about subscriptions."""
    return {subject.split("/")[3] for subject, _ in rows(store, "kind = 'subscription'")}


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPE_INTERNAL_API_TOKEN", TOKEN)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "tape.db"


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.mark.parametrize("has_dedup", [pytest.param(False, marks=pytest.mark.proof), True])
def test_a_runtime_killed_at_any_moment_loses_nothing(nats: NatsServer, store: Path, has_dedup: bool) -> None:
    stream = Stream(nats)
    choice = random.Random(7)
    killed_at_work = 0
    with ServerProcess(f"sqlite:{store}") as server:
        register(Control(server.http_url, TOKEN), stream, dedup={"enabled": has_dedup})
        for number in range(5):
            stream.publish(range(number * 300, (number + 1) * 300))
            before = runs(store).total()
            with runtime(server):
                wait_for(lambda before=before: runs(store).total() > before, "some runs")
                time.sleep(choice.random() * 0.1)  # any moment will do, between fetch and ack among them
            killed_at_work += not stream.is_empty()
        assert killed_at_work
        with runtime(server) as last:
            wait_for(lambda: len(runs(store)) == 1_500 and stream.is_empty(), "all messages")
            last.send_signal(signal.SIGTERM)
            assert last.wait(120) == 0
        found = runs(store)
    assert not difference(found.elements() if has_dedup else found, range(1_500))


def test_a_server_and_a_broker_that_die_in_the_middle_lose_nothing(store: Path) -> None:
    with NatsServer() as nats, ServerProcess(f"sqlite:{store}") as server:
        stream = Stream(nats)
        control = Control(server.http_url, TOKEN)
        register(control, stream, dedup={"enabled": True})
        with runtime(server):
            stream.publish(range(50))
            wait_for(lambda: runs(store).total() >= 10, "runs")
            server.kill()
            stream.publish(range(50, 100))  # no runtime reads them
            server.start(server.url.removeprefix("tape://"), server.http_url.removeprefix("http://"))
            wait_for(lambda: runs(store).total() >= 60, "runs after the server came back")
            nats.kill()
            wait_for(lambda: "source.lost" in verbs(store), "the event of the outage")
            nats.start()
            stream.publish(range(100, 150))
            wait_for(lambda: runs(store).total() >= 150 and stream.is_empty(), "all runs")
        assert not difference(runs(store).elements(), range(150))
        assert {"source.lost", "source.restored"} <= verbs(store)


def test_a_runtime_follows_the_lifecycle_and_ends_when_it_is_drained(nats: NatsServer, store: Path) -> None:
    stream = Stream(nats, ack_wait_s=120)
    with ServerProcess(f"sqlite:{store}") as server:
        control = Control(server.http_url, TOKEN)
        register(control, stream, dispatch={"playbook": "domain/ingest"})
        with runtime(server) as process:
            stream.publish(range(6))
            wait_for(lambda: runs(store).total() == 6, "six runs")
            (status,) = control.list(PATH)
            control.act(status["subscription_id"], "drain")
            assert process.wait(120) == 0
            assert process.finish() == "6 received, 6 dispatched, 0 failed.\n"
        assert control.status(status["subscription_id"])["state"] == "DEACTIVATED"


def test_a_runtime_that_stops_deactivates_its_subscription_unless_others_run_it(nats: NatsServer, store: Path) -> None:
    stream = Stream(nats)
    with ServerProcess(f"sqlite:{store}") as server:
        control = Control(server.http_url, TOKEN)
        register(control, stream)
        stops = (["--keep-active"], "ACTIVE"), ([], "DEACTIVATED"), ([], "DEACTIVATED")
        for number, (flags, left) in enumerate(stops):
            with runtime(server, *flags) as process:
                stream.publish(range(number, number + 1))
                wait_for(lambda so_far=number: runs(store).total() == so_far + 1, "the message to become a run")
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 0
            assert control.list(PATH)[0]["state"] == left
        assert {"draining", "deactivated"} <= verbs(store)
