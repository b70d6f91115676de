"""`kind: subscription` in a playbook: a bounded fetch, and settling what an earlier step fetched."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tape.documents.document import Document
from tape.errors import InvalidDocument, SourceMisconfigured, SourceUnavailable, StepFailed
from tape.playbooks.document import Playbook, read_playbook
from tape.playbooks.host import LocalHost, RunInfo
from tape.playbooks.runner import run_playbook
from tape.playbooks.tools import ToolCall
from tape.subscriptions.tool import SubscriptionTool
from tests.broker_services import KafkaCluster, NatsServer
from tests.brokers.rigs import Rig, kafka_rig, nats_rig, pubsub_rig
from tests.pubsub import PubSub

RUN = RunInfo(id="1", path="domain/drain")


class Recording(LocalHost):
    """A host that remembers what was recorded, and fails where the test asks it to."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded: dict[str, Any] = {}

    async def perform(self, key: str, step: str, request: Any, act: Callable[[], Awaitable[Any]]) -> Any:
        if key in self.recorded:
            if isinstance(self.recorded[key], Exception):
                raise StepFailed(step, "SourceUnavailable", "as before")
            return self.recorded[key]
        try:
            self.recorded[key] = await act()
        except Exception as error:
            self.recorded[key] = error
            raise StepFailed(step, type(error).__name__, str(error)) from error
        return self.recorded[key]


async def call(rig: Rig, host: Any = None, **config: Any) -> Any:
    wanted = {"source": rig.name, "timeout_ms": 10_000, **rig.spec, **config}
    return await SubscriptionTool().call(ToolCall(wanted, RUN, "drain", "1/drain", host or LocalHost()))


async def test_a_poll_acknowledges_and_gives_the_messages(nats_server: NatsServer) -> None:
    rig = await nats_rig(nats_server)
    await rig.feed(b'{"n": 1}', b"text", b"", headers=[("X-Kind", "order"), ("X-Kind", "new")])
    got = await call(rig)
    assert {key: got[key] for key in ("status", "source", "operation", "count", "acked", "ack_mode", "ack_ids")} == {
        "status": "success",
        "source": "nats",
        "operation": "poll",
        "count": 3,
        "acked": True,
        "ack_mode": "on_success",
        "ack_ids": [],
    }
    assert [each["data"] for each in got["messages"]] == [{"n": 1}, "text", ""]
    first = got["messages"][0]
    assert sorted(first) == ["attributes", "data", "headers", "id", "metadata"]
    assert (first["id"], first["headers"], first["attributes"]) == (
        "1",
        {"x-kind": ["order", "new"]},
        {"X-Kind": ["order", "new"]},
    )
    assert first["metadata"]["delivered"] == 1
    assert got["metrics"] == {"tape_subscription_messages_fetched_total": 3, "source": "nats"}
    assert (await call(rig, timeout_ms=100))["count"] == 0


async def test_deferred_messages_are_settled_by_later_steps(nats_server: NatsServer) -> None:
    rig = await nats_rig(nats_server)
    await rig.feed(b"1", b"2", b"3")
    got = await call(rig, ack="defer")
    assert (got["acked"], len(got["ack_ids"])) == (False, 3)
    assert [each["ack_id"] for each in got["messages"]] == got["ack_ids"]
    done = await call(rig, operation="ack", ack_ids=got["ack_ids"][:1])
    assert (done["status"], done["requested"], done["disposed"], done["errors"]) == ("success", 1, 1, [])
    await call(rig, operation="term", ack_ids=got["ack_ids"][1:2])
    await call(rig, operation="nak", ack_ids=got["ack_ids"][2:])
    assert [each["data"] for each in (await call(rig))["messages"]] == [3]
    partial = await call(rig, operation="ack", ack_ids=["$JS.ACK.no.such", "nonsense"])
    assert (partial["status"], partial["disposed"]) == ("partial", 1)
    assert "'nonsense' is not a receipt" in partial["errors"][0]
    assert (await call(rig, operation="ack"))["requested"] == 0


async def test_pubsub_gives_receipts_and_takes_them_back(pubsub_server: PubSub) -> None:
    rig = await pubsub_rig(pubsub_server)
    await rig.feed(b'{"n": 1}')
    got = await call(rig, ack=False)
    assert (got["acked"], got["ack_mode"], len(got["ack_ids"])) == (False, "manual", 1)
    await call(rig, operation="nack", ack_ids=got["ack_ids"], nack_delay_ms=0)
    again = await call(rig)
    assert (again["count"], again["acked"], again["ack_ids"]) == (1, True, [])


async def test_kafka_commits_what_was_fetched_and_settles_nothing_from_outside(kafka_cluster: KafkaCluster) -> None:
    rig = await kafka_rig(kafka_cluster)
    await rig.feed(b"1", b"2")
    got = await call(rig, batch=1)
    assert ([each["data"] for each in got["messages"]], got["acked"]) == ([1], True)
    assert "ack_id" not in got["messages"][0]
    assert [each["data"] for each in (await call(rig))["messages"]] == [2]
    with pytest.raises(SourceMisconfigured, match="does not support out-of-band ack"):
        await call(rig, operation="ack", ack_ids=["t:0:1"])


async def test_what_a_dead_worker_had_fetched_and_recorded_is_not_fetched_again(nats_server: NatsServer) -> None:
    rig = await nats_rig(nats_server)
    await rig.feed(b"1", b"2")
    host = Recording()
    first = await call(rig, host, batch=1)
    again = await call(rig, host, batch=1)  # another worker recovers the run before the step is recorded
    assert again == first
    assert [each["data"] for each in (await call(rig))["messages"]] == [2]


async def test_an_attempt_that_failed_is_tried_again(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await nats_rig(nats_server)
    await rig.feed(b"1")
    host = Recording()

    async def broken(*_: Any) -> Any:
        raise SourceUnavailable("the connection was lost")

    with monkeypatch.context() as patch:
        patch.setattr("tape.brokers.nats.source.NatsSource.poll", broken)
        with pytest.raises(SourceUnavailable, match="was lost"):
            await call(rig, host)
    assert (await call(rig, host))["count"] == 1


def playbook(tool: dict[str, Any]) -> Playbook:
    steps = [{"step": "drain", "tool": {"kind": "subscription", **tool}}]
    content = {
        "kind": "Playbook",
        "metadata": {"path": "domain/drain"},
        "workflow": steps,
        "output": "{{ drain.count }}",
    }
    document = Document(json.dumps(content))
    found = read_playbook(document)
    document.check()
    return found


async def test_a_playbook_drains_a_stream(nats_server: NatsServer) -> None:
    rig = await nats_rig(nats_server)
    await rig.feed(b"1", b"2", b"3")
    found = playbook({"source": "nats", "timeout_ms": 10_000, **rig.spec, "batch": "{{ input.batch }}"})
    assert await run_playbook(found, {"batch": 2}, RUN, LocalHost()) == 2
    assert await run_playbook(found, {"batch": 2}, RUN, LocalHost()) == 1


@pytest.mark.parametrize(
    ("tool", "problem"),
    [
        ({"source": "natz"}, "did you mean 'nats'"),
        ({"source": "nats", "operation": "fetch"}, "operation"),
        ({"source": "nats", "ack": "perhaps"}, "Valid: on_success, auto, manual, defer, none"),
        ({"source": "nats", "batch": "50"}, "whole number"),
        ({"source": "nats", "steam": "x"}, "did you mean 'stream'"),
        ({}, "source"),
    ],
)
def test_an_invalid_step_is_rejected_at_registration(tool: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidDocument, match=problem):
        playbook(tool)


async def test_what_turns_out_wrong_when_it_runs_is_named(nats_server: NatsServer) -> None:
    rig = await nats_rig(nats_server)
    for config, problem in (
        ({"operation": "fetch"}, "Supported: poll, ack, nack, term"),
        ({"batch": "50"}, "'batch' must be a whole number"),
        ({"operation": "ack", "ack_ids": "one"}, "'ack_ids' must be a list"),
    ):
        with pytest.raises(SourceMisconfigured, match=problem):
            await call(rig, **config)


@pytest.mark.parametrize(
    ("tenant", "alias", "asked"),
    [
        ("acme", "broker", "~acme/broker"),
        ("acme", "~other/broker", "~acme/~other/broker"),
        ("", "broker", "broker"),
    ],
)
async def test_a_step_gets_a_secret_of_its_runs_own_tenant(tenant: str, alias: str, asked: str) -> None:
    seen: list[str] = []

    async def reveal(name: str, hosts: Any) -> Any:
        seen.append(name)
        raise SourceUnavailable("no such secret")

    run = RunInfo(id="1", path="domain/drain", tenant=tenant)
    config = {"source": "nats", "auth": alias, "stream": "s", "consumer": "c", "url": "nats://127.0.0.1:1"}
    with pytest.raises(SourceUnavailable):
        await SubscriptionTool(reveal).call(ToolCall(config, run, "drain", "1/drain", LocalHost()))
    assert seen == [asked]
