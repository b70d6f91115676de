"""NATS, Kafka and Pub/Sub when they are unavailable, reject messages, or are not installed."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tape.errors import InvalidInput, MissingExtra, SinkHeldBack, SinkRejected, SinkUnavailable
from tape.sinks import KafkaSink, NatsSink, PubSubSink
from tape.sinks.nats import subject_of
from tests.services import free_port, wait_for
from tests.sinks.conftest import entry
from tests.sinks.receivers import KafkaBroker, Process, nats_server


def test_nats_subjects_have_dots_and_none_within_a_token() -> None:
    assert subject_of(entry(1)) == "tape.effect.confirmed.pay%2Ecard.r-1"


def test_an_unreachable_nats_server_is_unavailable_and_holds_everything_back() -> None:
    sink = NatsSink(f"nats://127.0.0.1:{free_port()}", timeout_s=0.2)
    outcomes = sink.publish_batch([entry(1), entry(2, "other")])
    assert [type(outcome) for outcome in outcomes] == [SinkUnavailable, SinkHeldBack]
    sink.close()
    sink.close()


def test_a_subject_without_a_stream_is_retried(nats: Process) -> None:
    sink = NatsSink(f"nats://127.0.0.1:{nats.port}", "no.stream", timeout_s=30)
    with pytest.raises(SinkUnavailable, match="Is there a stream"):
        sink.publish(entry(1))
    sink.close()


def test_a_message_that_nats_never_takes_is_rejected_and_its_run_held_back(nats: Process) -> None:
    sink = NatsSink(f"nats://127.0.0.1:{nats.port}", "core.subject", jetstream=False)
    huge = entry(1, payload=json.dumps("x" * 2_000_000))
    outcomes = sink.publish_batch([huge, entry(2)])
    assert [type(outcome) for outcome in outcomes] == [SinkRejected, SinkHeldBack]
    sink.publish(entry(3))
    sink.close()


def test_nats_is_reconnected_after_an_outage_and_the_stream_drops_a_duplicate(tmp_path: Path) -> None:
    import nats as client

    server = nats_server(tmp_path)
    url = f"nats://127.0.0.1:{server.port}"

    async def stream(action: str) -> Any:
        connection = await client.connect(url)
        try:
            if action == "add":
                return await connection.jetstream().add_stream(name="s", subjects=["tape.>"])
            return (await connection.jetstream().stream_info("s")).state.messages
        finally:
            await connection.close()

    asyncio.run(stream("add"))
    sink = NatsSink(url, timeout_s=1)

    def publishes(number: int) -> bool:
        try:
            sink.publish(entry(number))
        except SinkUnavailable:
            return False
        return True

    wait_for(lambda: publishes(1), "the first entry")
    server.close()
    assert not publishes(2)
    again = nats_server(tmp_path, server.port)
    wait_for(lambda: publishes(2), "the sink to reach it again")
    wait_for(lambda: publishes(1), "a repeat, as after a relay that died")  # the stream knows the id
    assert asyncio.run(stream("count")) == 2
    sink.close()
    again.close()


def test_an_unreachable_kafka_cluster_is_unavailable() -> None:
    sink = KafkaSink(f"127.0.0.1:{free_port()}", "topic", timeout_s=0.5, config={"log_level": 0})
    outcomes = sink.publish_batch([entry(1), entry(2)])
    assert [type(outcome) for outcome in outcomes] == [SinkUnavailable, SinkHeldBack]


def test_a_record_that_kafka_never_takes_is_rejected(kafka: KafkaBroker) -> None:
    sink = KafkaSink(kafka.servers, "sizes", config={"message.max.bytes": 1_000})
    with pytest.raises(SinkRejected, match="topic sizes"):
        sink.publish(entry(1, payload=json.dumps("x" * 5_000)))
    sink.publish(entry(2))
    sink.close()


def test_a_topic_that_does_not_exist_is_rejected_and_the_run_goes_on_later(
    pubsub: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", f"127.0.0.1:{pubsub.port}")
    sink = PubSubSink("tape-test", "missing-topic")
    outcomes = sink.publish_batch([entry(1), entry(2), entry(1, "other")])
    assert [type(outcome) for outcome in outcomes] == [SinkRejected, SinkHeldBack, SinkRejected]
    from google.cloud import pubsub_v1

    publisher = pubsub_v1.PublisherClient()
    publisher.create_topic(name=publisher.topic_path("tape-test", "missing-topic"))
    assert sink.publish_batch([entry(1), entry(2)]) == [None, None]
    publisher.stop()
    sink.close()


@pytest.mark.parametrize(
    ("module", "make", "extra"),
    [
        ("nats", lambda: NatsSink(), "nats"),
        ("confluent_kafka", lambda: KafkaSink("s", "t"), "kafka"),
        ("google.cloud.pubsub_v1", lambda: PubSubSink("p", "t"), "pubsub"),
    ],
)
def test_a_client_that_is_not_installed_is_named_with_its_extra(
    module: str, make: Any, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"tape\[{extra}\]"):
        make()


def test_importing_the_sinks_loads_no_broker_client() -> None:
    import subprocess

    code = "import sys, tape.sinks; print([m for m in ('nats', 'confluent_kafka', 'google.cloud') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert importlib.import_module("tape.reactors").run_outbox_relay


@pytest.mark.parametrize(
    "make",
    [
        lambda: NatsSink(timeout_s=0),
        lambda: KafkaSink("", "t"),
        lambda: PubSubSink("projects/p", "t"),
        lambda: PubSubSink("p", ""),
    ],
)
def test_invalid_settings_are_rejected(make: Any) -> None:
    with pytest.raises(InvalidInput):
        make()
