"""Messages as effects, and workers that messages wake, against Google's emulator and both databases."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.cloud.pubsub_v1")

from google.cloud import pubsub_v1

from tape.client import TapeClient
from tape.connectors import DispatchResult, PubSubConnector, PubSubSubscriber
from tape.proto import tape_pb2 as pb
from tests.pubsub import PROJECT, PubSub
from tests.services import ServerProcess, wait_for


def received(subscription: str, count: int) -> list[Any]:
    """The next messages of a subscription."""
    messages: list[Any] = []
    with pubsub_v1.SubscriberClient() as subscriber:
        path = subscriber.subscription_path(PROJECT, subscription)
        while len(messages) < count:
            pulled = subscriber.pull(request={"subscription": path, "max_messages": count}).received_messages
            if pulled:
                subscriber.acknowledge(request={"subscription": path, "ack_ids": [each.ack_id for each in pulled]})
            messages += [each.message for each in pulled]
    return messages


@pytest.fixture
def connector(pubsub: PubSub) -> Iterator[tuple[PubSubConnector, str]]:
    topic, subscription = pubsub.topic()
    made = PubSubConnector("orders", PROJECT, topic, ordering_key_from="{account}")
    yield made, subscription
    made.publisher.stop()
    made.publisher.transport.close()


def test_a_message_carries_the_request_and_whose_it_is(connector: tuple[PubSubConnector, str]) -> None:
    sending, subscription = connector
    effect = pb.EffectRecord(
        run_id="r", idempotency_key="r/1", tool_name="order", connector="orders", request_json='{"account": "a 1"}'
    )
    result = sending.dispatch(effect)
    (message,) = received(subscription, 1)
    assert (result.status, result.external_ref) == ("confirmed", message.message_id)
    assert (json.loads(message.data), message.ordering_key) == ({"account": "a 1"}, "a%201")
    assert dict(message.attributes) == {
        "run_id": "r", "idempotency_key": "r/1", "tool_name": "order", "connector": "orders",
    }  # fmt: skip


def test_a_topic_that_is_not_there_is_a_failure_and_not_a_doubt(pubsub: PubSub) -> None:
    sending = PubSubConnector("orders", PROJECT, "no-such-topic")
    result = sending.dispatch(pb.EffectRecord(run_id="r", idempotency_key="r/1"))
    sending.publisher.stop()
    sending.publisher.transport.close()
    assert (result.status, result.error["type"], result.retry_at_ms) == ("failed", "NotFound", 0)


class Worker:
    """A subscriber in the background, and what its handler was given."""

    def __init__(self, url: str, subscription: str, *answers: DispatchResult | Exception) -> None:
        self.handled: list[dict[str, Any]] = []
        self._answers = list(answers)
        self._lock = threading.Lock()
        self.subscriber = PubSubSubscriber(PROJECT, subscription, url, self._handle, backoff_base_ms=1)

    def _handle(self, request: dict[str, Any], attributes: dict[str, Any]) -> DispatchResult:
        with self._lock:
            self.handled.append(request)
            answer = self._answers.pop(0) if self._answers else DispatchResult("confirmed", external_ref="done")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def __enter__(self) -> Worker:
        self.subscriber.run(block=False)
        return self

    def __exit__(self, *_: object) -> None:
        self.subscriber.stop()
        self.subscriber.subscriber.close()


@pytest.fixture
def served(store_url: str) -> Iterator[TapeClient]:
    with ServerProcess(store_url) as server, TapeClient(server.url) as client:
        yield client


def left_in_the_outbox(client: TapeClient, number: int = 0, semantics: int = 1) -> pb.EffectRecord:
    run = client.begin_run(
        app_name="a", user_id="u", session_id="s", invocation_id=f"i{number}", scopes=["orders"]
    ).run_id
    begun = client.begin_effect(
        run_id=run,
        decision_index=0,
        tool_name="order",
        request_json=json.dumps({"number": number}),
        semantics=semantics,
        dispatch_mode=2,
        connector="orders",
        scope="orders",
    )
    return client.get_effect(run_id=run, idempotency_key=begun.idempotency_key).effect


def publish(topic: str, *messages: tuple[bytes, dict[str, str]]) -> None:
    publisher = pubsub_v1.PublisherClient()
    for data, attributes in messages:
        publisher.publish(publisher.topic_path(PROJECT, topic), data, **attributes).result()
    publisher.stop()
    publisher.transport.close()


def status_of(client: TapeClient, effect: pb.EffectRecord) -> int:
    return client.get_effect(run_id=effect.run_id, idempotency_key=effect.idempotency_key).effect.status


def test_a_worker_carries_out_what_messages_name_once(pubsub: PubSub, served: TapeClient) -> None:
    topic, subscription = pubsub.topic()
    effects = [left_in_the_outbox(served, number) for number in range(3)]
    by_name = [(b"", {"run_id": each.run_id, "idempotency_key": each.idempotency_key}) for each in effects]
    # As a relay of the journal sends it, with the effect in the body.
    entry = {"run_id": effects[0].run_id, "payload_json": json.dumps({"idempotency_key": effects[0].idempotency_key})}
    publish(topic, *by_name, (json.dumps(entry).encode(), {}), *by_name, (b"garbage", {}))
    with Worker(served.url, subscription) as one, Worker(served.url, subscription) as other:
        counts = (one.subscriber.counts, other.subscriber.counts)
        wait_for(lambda: all(status_of(served, each) == 2 for each in effects), "the effects to be confirmed")
        wait_for(lambda: sum(each["dropped"] for each in counts), "the message about nothing to be dropped")
    assert sorted(each["number"] for each in one.handled + other.handled) == [0, 1, 2]


def test_a_failed_effect_is_redelivered_and_an_unknown_one_is_not(pubsub: PubSub, served: TapeClient) -> None:
    topic, subscription = pubsub.topic()
    other_topic, other_subscription = pubsub.topic()
    again, never = left_in_the_outbox(served, 1), left_in_the_outbox(served, 2, semantics=2)
    publish(topic, (b"", {"run_id": again.run_id, "idempotency_key": again.idempotency_key}))
    with Worker(served.url, subscription, OSError("the line is dead")) as worker:
        wait_for(lambda: status_of(served, again) == 2, "the second attempt")
        assert len(worker.handled) == 2
    publish(other_topic, (b"", {"run_id": never.run_id, "idempotency_key": never.idempotency_key}))
    with Worker(served.url, other_subscription, OSError("the line is dead")) as worker:
        wait_for(lambda: status_of(served, never) == 4, "the effect to be unknown")
        assert len(worker.handled) == 1


def test_the_worker_is_a_program_too(pubsub: PubSub, served: TapeClient, tmp_path: Path) -> None:
    topic, subscription = pubsub.topic()
    (tmp_path / "work.py").write_text(
        "from tape.connectors import DispatchResult\n"
        "def handle(request, attributes): return DispatchResult('confirmed', f\"done-{request['number']}\")\n"
    )
    effect = left_in_the_outbox(served, 9)
    publish(topic, (b"", {"run_id": effect.run_id, "idempotency_key": effect.idempotency_key}))
    command = [Path(sys.executable).with_name("tape-pubsub-sub"), "--project", PROJECT, "--subscription", subscription]
    worker = subprocess.Popen(
        [*command, "--handle", "work:handle", "--url", served.url], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    wait_for(lambda: status_of(served, effect) == 2, "the worker to do it")
    worker.send_signal(signal.SIGTERM)
    output, _ = worker.communicate(timeout=120)
    assert worker.returncode == 0
    assert "'confirmed': 1" in output
    found = served.get_effect(run_id=effect.run_id, idempotency_key=effect.idempotency_key)
    assert found.effect.external_ref == "done-9"
