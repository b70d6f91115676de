"""Six messages of every source become six completed runs on their pool: routed where allowed, traced, and reported."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tape.engine.security.keyfile import KeyFile
from tape.playbooks.worker import work
from tape.server.server import Server
from tape.subscriptions.api_client import Control
from tests.brokers.rigs import (
    Headers,
    Rig,
    amqp_broker,
    amqp_rig,
    kafka_cluster,
    kafka_rig,
    mqtt_broker,
    mqtt_rig,
    nats_rig,
    nats_server,
    pubsub_rig,
    pubsub_server,
    sqs_rig,
    sqs_service,
)
from tests.conftest import settings_for
from tests.forked import tape
from tests.web import call

__all__ = ["amqp_broker", "kafka_cluster", "mqtt_broker", "nats_server", "pubsub_server", "sqs_service"]

SECRET = "a-secret-of-this-test"
PATH = "subscriptions/orders"
PLAYBOOK = """\
kind: Playbook
metadata: {{path: {path}}}
workflow:
  - step: keep
    tool: {{kind: value, value: "order {{{{ input.n }}}}"}}
"""
HEADERS = {
    "directives": [
        {"header": "X-Route", "controls": "dispatch.playbook", "allowed": ["domain/fraud"]},
        {"header": "X-Pool", "controls": "dispatch.execution_pool", "allowed": ["express"]},
    ],
    "trace": {"propagate": "w3c"},
}
# What each message asks for; what it is not allowed to have is not in the third column.
ASKED: list[tuple[Headers, str, str]] = [
    ((), "domain/ingest", "orders"),
    ((("x-route", "domain/fraud"),), "domain/fraud", "orders"),
    ((("x-route", "domain/secret"),), "domain/ingest", "orders"),
    ((("x-pool", "express"),), "domain/ingest", "express"),
    ((("x-pool", "system"),), "domain/ingest", "orders"),
    ((("x-route", "domain/fraud"), ("x-pool", "express")), "domain/fraud", "express"),
]


def trace(number: int) -> str:
    return f"00-{number + 1:032x}-00f067aa0ba902b7-01"


async def webhook_rig(server: Server) -> Rig:
    await server.wallet.set("orders_secret", SECRET)

    async def publish(body: bytes, headers: Headers) -> None:
        signature = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        sent = {name.replace("-", "_"): value for name, value in headers}
        answer = await call(server.http_address, "POST", "/ingress/orders", body, x_signature=signature, **sent)
        assert answer.status == 202, answer.body

    verify = {"type": "hmac_sha256", "header": "X-Signature", "secret": "orders_secret"}
    return Rig("webhook", {"ingress": {"gateway_path": "/ingress/orders", "verify": verify}}, publish, {})


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    key = tmp_path / "wallet.key"
    KeyFile(key).create()
    async with Server(settings_for(f"sqlite:{tmp_path / 'tape.db'}", wallet_key=str(key))) as server:
        yield server


@asynccontextmanager
async def working(server: Server, *pools: str) -> AsyncIterator[None]:
    stop = threading.Event()
    tasks = [asyncio.create_task(work(f"tape://{server.grpc_address}", pool=pool, stop=stop)) for pool in pools]
    try:
        yield
    finally:
        stop.set()
        await asyncio.gather(*tasks)


async def completed(server: Server, count: int) -> list[dict[str, Any]]:
    """The commands of so many runs that have ended well, in the order of their messages."""
    question = "SELECT kind, run_id, payload_json, trace_id FROM tape_journal WHERE kind IN ('command', 'run')"
    async with asyncio.timeout(200):
        while True:
            rows = await server.database.read(lambda reader: reader.query(question))
            ended = {row[1] for row in rows if row[0] == "run" and json.loads(row[2])["status"] == "terminal"}
            if len(ended) >= count:
                break
            await asyncio.sleep(0.05)
    commands = [json.loads(row[2]) | {"trace_id": row[3]} for row in rows if row[0] == "command" and row[1] in ended]
    return sorted(commands, key=lambda command: command["payload"]["n"])


@pytest.mark.parametrize("source", ["nats", "kafka", "pubsub", "mqtt", "sqs", "amqp", "webhook"])
async def test_six_messages_become_six_completed_runs(
    server: Server, source: str, request: pytest.FixtureRequest
) -> None:
    match source:
        case "nats":
            rig = await nats_rig(request.getfixturevalue("nats_server"))
        case "kafka":
            rig = await kafka_rig(request.getfixturevalue("kafka_cluster"))
            del rig.spec["options"]
        case "pubsub":
            rig = await pubsub_rig(request.getfixturevalue("pubsub_server"))
        case "mqtt":
            rig = await mqtt_rig(request.getfixturevalue("mqtt_broker"))
            await rig.open_once()
        case "sqs":
            rig = await sqs_rig(request.getfixturevalue("sqs_service"))
        case "amqp":
            rig = await amqp_rig(request.getfixturevalue("amqp_broker"))
        case _:
            rig = await webhook_rig(server)
    is_pull = source != "webhook"
    spec = {
        "source": source,
        "mode": "pull" if is_pull else "push",
        **({"runtime": {"target": "local"}} if is_pull else {}),
        **rig.spec,
        "dispatch": {"playbook": "domain/ingest", "execution_pool": "orders"},
        "headers": HEADERS,
    }
    control = Control(f"http://{server.http_address}")
    for path in ("domain/ingest", "domain/fraud", "domain/secret"):
        await control.ask("POST", "/api/catalog/register", {"content": PLAYBOOK.format(path=path)})
    document = json.dumps({"kind": "Subscription", "metadata": {"path": PATH}, "spec": spec})
    await asyncio.to_thread(control.register_document, document)
    registered = await asyncio.to_thread(control.register, PATH)
    await asyncio.to_thread(control.act, registered["subscription_id"], "activate")

    for number, (headers, _, _) in enumerate(ASKED):
        await rig.publish(json.dumps({"n": number}).encode(), [*headers, ("traceparent", trace(number))])
    async with working(server, "orders", "express"):
        commands = await completed(server, len(ASKED))

    assert [(each["path"], each["pool"]) for each in commands] == [(path, pool) for _, path, pool in ASKED]
    assert [each["trace_id"] for each in commands] == [trace(number)[3:35] for number in range(len(ASKED))]
    assert {each["subscription"] for each in commands} == {PATH}

    url = f"tape://{server.grpc_address}"
    shown = await asyncio.to_thread(
        tape, "tail", "--from", "start", "--no-follow", "--subject", "/tape/subscription/**", "--url", url
    )
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("/tape/subscription/message.directives_applied/orders") == len(ASKED)
    for verb in ("registered", "activated"):
        assert f"/tape/subscription/{verb}/orders" in shown.stdout
    await asyncio.to_thread(control.close)
