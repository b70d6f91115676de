"""A runtime on MQTT, SQS or AMQP is killed in the middle, and its broker has an outage: every message becomes a run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tape.subscriptions.api_client import Control
from tests.brokers.rigs import (
    Rig,
    amqp_broker,
    amqp_rig,
    mqtt_broker,
    mqtt_rig,
    sqs_rig,
    sqs_service,
)
from tests.proxy import FaultProxy
from tests.services import ServerProcess, difference, wait_for
from tests.system.test_subscriptions import PATH, PLAYBOOK, TOKEN, runs, runtime, verbs

__all__ = ["amqp_broker", "mqtt_broker", "sqs_service"]


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAPE_INTERNAL_API_TOKEN", TOKEN)


@pytest.fixture(params=["mqtt", "sqs", "amqp"])
def behind_a_network(request: pytest.FixtureRequest) -> Iterator[tuple[Rig, FaultProxy]]:
    """A source whose broker is reached through a network that fails on demand; publishers reach it directly."""
    with ExitStack() as stack:

        def network(port: int) -> FaultProxy:
            return stack.enter_context(FaultProxy(("127.0.0.1", port)))

        match request.param:
            case "mqtt":
                broker = request.getfixturevalue("mqtt_broker")
                rig, between = asyncio.run(mqtt_rig(broker)), network(broker.port)
                rig.spec["url"] = f"mqtt://{between.address}"
            case "sqs":
                service = request.getfixturevalue("sqs_service")
                rig = asyncio.run(sqs_rig(service, fifo=False, visibility_secs=2))
                between = network(int(service.address.rpartition(":")[2]))
                rig.spec["endpoint"] = f"http://{between.address}"
            case _:
                broker = request.getfixturevalue("amqp_broker")
                rig, between = asyncio.run(amqp_rig(broker)), network(broker.port)
                rig.spec["url"] = f"amqp://{between.address}"
        yield rig, between


def publish(rig: Rig, numbers: range) -> None:
    async def send() -> None:
        for number in numbers:
            # The key under which a redelivered message is recognized, for brokers without message ids.
            await rig.publish(json.dumps({"n": number}).encode(), [("order-id", str(number))])

    asyncio.run(send())


def document(rig: Rig) -> dict[str, Any]:
    spec = {
        "source": rig.name,
        "mode": "pull",
        **rig.spec,
        "runtime": {"batch": 5},
        "dispatch": {"playbook": "domain/ingest"},
        "dedup": {"enabled": True},
        "headers": {"directives": [{"header": "order-id", "controls": "idempotency_key"}]},
    }
    return {"kind": "Subscription", "metadata": {"path": PATH}, "spec": spec}


def test_nothing_is_lost_when_the_runtime_is_killed_and_the_broker_has_an_outage(
    behind_a_network: tuple[Rig, FaultProxy], tmp_path: Path
) -> None:
    rig, network = behind_a_network
    store = tmp_path / "tape.db"
    with ServerProcess(f"sqlite:{store}") as server:
        control = Control(server.http_url, TOKEN)
        control.register_document(PLAYBOOK)
        control.register_document(json.dumps(document(rig)))
        asyncio.run(rig.open_once())
        publish(rig, range(40))
        with runtime(server):
            wait_for(lambda: runs(store).total() > 0, "some runs")
        publish(rig, range(40, 50))  # nothing is connected
        with runtime(server):
            wait_for(lambda: len(runs(store)) == 50, "the runs of all messages after the kill")
            network.become("refuses")
            wait_for(lambda: "source.lost" in verbs(store), "the event of the outage")
            publish(rig, range(50, 60))
            network.become("passes")
            wait_for(lambda: len(runs(store)) == 60, "the runs of messages published during the outage")
            wait_for(lambda: "source.restored" in verbs(store), "the event of the recovery")
        assert not difference(runs(store).elements(), range(60))
