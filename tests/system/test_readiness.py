"""Readiness of a remote runtime falls with its source, its server or its spool, and comes back by itself."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3

from tape.subscriptions.api_client import Control
from tests.broker_services import NatsServer
from tests.forked import Forked, tape
from tests.services import ServerProcess, free_port, wait_for
from tests.system.test_subscriptions import PATH, PLAYBOOK, TOKEN, Stream, register, runs


class Health:
    """The health endpoint of a runtime."""

    def __init__(self, address: str) -> None:
        self.address = address

    def get(self, path: str) -> tuple[int, dict[str, Any]]:
        try:
            answer = urllib3.request("GET", f"http://{self.address}{path}", retries=False, timeout=10)
        except urllib3.exceptions.HTTPError:
            return 0, {}
        return answer.status, json.loads(answer.data)

    def wait_until_ready(self) -> None:
        wait_for(lambda: self.get("/readyz") == (200, {"ready": True, "reasons": {}}), "readiness")

    def wait_for_reason(self, what: str, text: str) -> None:
        """Wait until it is not ready because of this, and says why."""

        def is_reason() -> bool:
            status, found = self.get("/readyz")
            return status == 503 and not found["ready"] and text in found["reasons"].get(what, "")

        wait_for(is_reason, f"{what} to be a reason")


@pytest.fixture
def broker() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerProcess]:
    monkeypatch.setenv("TAPE_INTERNAL_API_TOKEN", TOKEN)
    with ServerProcess(f"sqlite:{tmp_path / 'tape.db'}") as server:
        yield server


def start(server: ServerProcess, *flags: str) -> tuple[Forked, Health]:
    address = f"127.0.0.1:{free_port()}"
    process = Forked(["subscription", "run", PATH, "--server", server.http_url, "--metrics-listen", address, *flags])
    return process, Health(address)


def test_readiness_falls_with_source_and_server_and_comes_back_by_itself(
    broker: NatsServer, server: ServerProcess, tmp_path: Path
) -> None:
    stream = Stream(broker)
    register(Control(server.http_url, TOKEN), stream)
    process, health = start(server)
    try:
        health.wait_until_ready()
        assert health.get("/livez") == (200, {"alive": True, "reasons": {}})

        broker.kill()
        health.wait_for_reason("source", broker.address)
        assert health.get("/livez")[0] == 200, "a restart would not help"
        broker.start()
        health.wait_until_ready()

        grpc, http = server.url.removeprefix("tape://"), server.http_url.removeprefix("http://")
        server.kill()
        health.wait_for_reason("server", http)
        server.start(grpc, http)
        health.wait_until_ready()

        stream.publish(range(5))
        wait_for(lambda: len(runs(tmp_path / "tape.db")) == 5, "the messages to become runs")
        assert health.get("/nothing")[0] == 404
        wait_for(lambda: health.get("/backlog")[1]["backlog"] == 0, "nothing to wait")
    finally:
        process.kill()


def test_a_runtime_that_starts_before_its_server_says_what_it_waits_for(
    broker: NatsServer, server: ServerProcess
) -> None:
    register(Control(server.http_url, TOKEN), Stream(broker))
    grpc, http = server.url.removeprefix("tape://"), server.http_url.removeprefix("http://")
    server.kill()
    process, health = start(server)
    try:
        health.wait_for_reason("server", http)
        health.wait_for_reason("runtime", "starting")
        assert health.get("/livez")[0] == 200
        server.start(grpc, http)
        health.wait_until_ready()
    finally:
        process.kill()


def test_readiness_falls_with_the_disk_of_the_spool_and_comes_back(
    broker: NatsServer, server: ServerProcess, tmp_path: Path
) -> None:
    folder = tmp_path / "volume" / "spool"
    circuit: dict[str, Any] = {"trip_after": 1, "probe_after_ms": 600_000, "probe_interval_ms": 100}
    circuit["downstream"] = [{"name": "default", "type": "tcp", "target": f"127.0.0.1:{free_port()}"}]
    stream = Stream(broker)
    spool = {"mode": "buffer_and_ack", "backend": "local_disk", "path": str(folder), "circuit": circuit}
    register(Control(server.http_url, TOKEN), stream, spool=spool)
    process, health = start(server)
    try:
        health.wait_until_ready()
        aside = folder.with_name("aside")
        folder.rename(aside)
        folder.write_text("a file where the folder was: nothing can be written below it")
        stream.publish(range(1))  # the circuit is open: it belongs into the spool
        health.wait_for_reason("spool", str(folder))
        folder.unlink()
        aside.rename(folder)
        health.wait_until_ready()
        wait_for(lambda: health.get("/backlog")[1]["spooled"] == 1, "the message to be in the spool")
    finally:
        process.kill()


def drain(server: ServerProcess, *flags: str) -> subprocess.CompletedProcess[str]:
    return tape("subscription", "run", PATH, "--server", server.http_url, "--once", *flags)


def test_a_runtime_whose_playbook_is_missing_is_not_ready_until_it_is_there(
    broker: NatsServer, server: ServerProcess
) -> None:
    control = Control(server.http_url, TOKEN)
    register(control, Stream(broker), dispatch={"playbook": "domain/later"})
    process, health = start(server)
    try:
        health.wait_for_reason("configuration", "domain/later")
        control.register_document(PLAYBOOK.replace("domain/ingest", "domain/later"))
        health.wait_until_ready()
    finally:
        process.kill()


SCHEDULED = {"activation": "scheduled", "cadence": "0 0 1 1 *"}


def test_a_scheduled_subscription_is_drained_once_and_is_not_activated(
    broker: NatsServer, server: ServerProcess, tmp_path: Path
) -> None:
    stream, control = Stream(broker), Control(server.http_url, TOKEN)
    register(control, stream, **SCHEDULED)
    stream.publish(range(25))
    for _ in range(2):  # the second finds nothing
        assert drain(server).returncode == 0
    assert stream.is_empty()
    assert sorted(runs(tmp_path / "tape.db").elements()) == list(range(25))
    status = control.latest(PATH)
    assert status is not None
    assert status["state"] == "REGISTERED"


def test_a_scheduled_subscription_that_the_server_drains_is_not_drained_by_a_second_process(
    broker: NatsServer, server: ServerProcess, tmp_path: Path
) -> None:
    stream, control = Stream(broker), Control(server.http_url, TOKEN)
    register(control, stream, **SCHEDULED)
    control.act(control.register(PATH)["subscription_id"], "activate")
    stream.publish(range(3))
    done = drain(server)
    assert done.returncode != 0
    assert f"tape subscriptions deactivate {PATH}" in done.stderr
    assert not runs(tmp_path / "tape.db")


def test_a_paused_subscription_is_left_alone_by_a_drain(
    broker: NatsServer, server: ServerProcess, tmp_path: Path
) -> None:
    stream, control = Stream(broker), Control(server.http_url, TOKEN)
    register(control, stream, **SCHEDULED)
    number = control.register(PATH)["subscription_id"]
    control.act(number, "activate")
    control.act(number, "pause")
    stream.publish(range(3))
    assert drain(server).returncode == 0
    assert not runs(tmp_path / "tape.db")


def test_a_continuous_subscription_can_be_drained_once_too(
    broker: NatsServer, server: ServerProcess, tmp_path: Path
) -> None:
    stream, control = Stream(broker), Control(server.http_url, TOKEN)
    register(control, stream)
    stream.publish(range(5))
    assert drain(server, "--keep-active").returncode == 0
    assert sorted(runs(tmp_path / "tape.db").elements()) == list(range(5))
    status = control.latest(PATH)
    assert status is not None
    assert status["state"] == "ACTIVE"
