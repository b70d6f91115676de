"""Subscriptions on Spark: each message that is read by offset starts one execution, with the live routing rules."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import nats
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession

from tape.errors import InvalidConfig, MessagesLost, OrderNotKept, PlaybookNotFound, SourceUnavailable
from tape.pipeline.job_context import JobContext
from tape.pipeline.jobs.subscription import StreamOptions, run_subscription
from tape.pipeline.journal_reader import query_store_once
from tape.pipeline.message_source import MessageReader, message_options
from tape.pipeline.session import QUICK_JVM
from tape.pipeline.subscription_task import ExecutionReport
from tape.subscriptions.api_client import Control
from tape.subscriptions.runtime.remote import RemoteRuntime
from tests.broker_services import KafkaCluster, NatsServer
from tests.brokers.rigs import kafka_cluster, nats_server
from tests.services import ServerProcess, free_port, wait_for

__all__ = ["kafka_cluster", "nats_server"]

TAPE = str(Path(sys.executable).with_name("tape"))
PLAYBOOK = """\
kind: Playbook
metadata: {path: %s}
workflow:
  - {step: keep, tool: {kind: value, value: 1}}
"""


class Shop:
    """A server with playbooks, and subscriptions on Spark."""

    def __init__(self, server: ServerProcess, store: str) -> None:
        self.url, self.store = server.http_url, store
        self.control = Control(self.url)
        for path in ("domain/order", "domain/special"):
            self.control.register_document(PLAYBOOK % path)

    def subscription(self, name: str, **spec: Any) -> str:
        """Register a subscription on Spark under a unique path and return the path."""
        path = f"subscriptions/{name}-{uuid.uuid4().hex[:8]}"
        spec = {"mode": "pull", "runtime": {"target": "spark"}, "dispatch": {"playbook": "domain/order"}} | spec
        document = {"kind": "Subscription", "metadata": {"path": path}, "spec": spec}
        self.control.register_document(json.dumps(document))
        return path

    def runs(self, path: str) -> list[tuple[str, str]]:
        """Return the message id and the playbook of every execution of a subscription, in order."""
        rows = query_store_once(
            self.store,
            lambda reader: reader.query(
                "SELECT labels_json FROM tape_runs WHERE session_id = ? ORDER BY started_at_ms, run_id", path
            ),
        )
        labels = [json.loads(row[0]) for row in rows]
        return [(each["tape.message_id"], each["tape.path"]) for each in labels]

    def events(self, path: str, verb: str) -> list[dict[str, Any]]:
        subject = f"/tape/subscription/{verb}/{path.rpartition('/')[2]}"
        rows = query_store_once(
            self.store, lambda reader: reader.query("SELECT payload_json FROM tape_journal WHERE subject = ?", subject)
        )
        return [json.loads(row[0]) for row in rows]

    def taken(self, path: str) -> dict[str, list[list[int]]]:
        found = self.control.call("GET", f"/api/taken?subscription={path}")["parts"]
        return dict(found)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    store = f"sqlite:{tmp_path_factory.mktemp('shop') / 'tape.db'}"
    with ServerProcess(store) as server:
        yield Shop(server, store)


@pytest.fixture
def topic(kafka_cluster: KafkaCluster) -> dict[str, Any]:
    name = f"topic-{uuid.uuid4().hex[:8]}"
    return {"source": "kafka", "brokers": kafka_cluster.address, "topic": name, "group": f"g-{name}"}


def produce(topic: dict[str, Any], *messages: tuple[str, bytes, dict[str, str]]) -> None:
    producer = Producer({"bootstrap.servers": topic["brokers"], "partitioner": "consistent"})
    for key, body, headers in messages:
        pairs: Any = [(name, value.encode()) for name, value in headers.items()]
        producer.produce(topic["topic"], body, key=key.encode(), headers=pairs)
    producer.flush(60)


def stream(server: NatsServer, messages: int, **config: Any) -> dict[str, Any]:
    """Create a JetStream stream with numbered messages."""
    name = f"S{uuid.uuid4().hex[:8]}"

    async def fill() -> None:
        connection = await nats.connect(f"nats://{server.address}")
        jetstream = connection.jetstream()
        await jetstream.add_stream(name=name, subjects=[f"{name}.>"], **config)
        publishing = [jetstream.publish(f"{name}.orders", b'{"n": %d}' % number) for number in range(messages)]
        await asyncio.gather(*publishing)
        await connection.close()

    asyncio.run(fill())
    return {"source": "nats", "url": f"nats://{server.address}", "stream": name}


async def publish(rig: dict[str, Any], messages: int) -> None:
    connection = await nats.connect(rig["url"])
    for number in range(messages):
        await connection.jetstream().publish(f"{rig['stream']}.orders", b"%d" % number)
    await connection.close()


async def purge(rig: dict[str, Any], before: int) -> None:
    connection = await nats.connect(rig["url"])
    await connection.jetstream().purge_stream(rig["stream"], seq=before)
    await connection.close()


class Job:
    """A subscription job with `follow`, on a thread."""

    def __init__(self, spark: SparkSession, shop: Shop, path: str, checkpoint: str) -> None:
        self.context = JobContext("subscription", quiet=True)
        self.done = ExecutionReport(stuck="it did not end")
        self._work = partial(
            run_subscription, spark, shop.url, "", path, self.context, StreamOptions(checkpoint, follow=True)
        )
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.done = self._work()

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    def __enter__(self) -> Job:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.context.stop()
        self._thread.join(300)


def following(spark: SparkSession, shop: Shop, path: str, checkpoint: str) -> Job:
    return Job(spark, shop, path, checkpoint)


def run(spark: SparkSession, shop: Shop, path: str, checkpoint: str, **options: Any) -> ExecutionReport:
    return run_subscription(
        spark, shop.url, "", path, JobContext("subscription", quiet=True), StreamOptions(checkpoint, **options)
    )


def test_records_of_a_topic_start_one_execution_each_routed_deduplicated_and_in_partition_order(
    spark: SparkSession, shop: Shop, topic: dict[str, Any], checkpoint: str
) -> None:
    rules = [
        {"header": "x-route", "controls": "dispatch.playbook", "allowed": ["domain/special"]},
        {"header": "x-key", "controls": "idempotency_key"},
    ]
    path = shop.subscription(
        "kafka", **topic, headers={"directives": rules}, dedup={"enabled": True, "window_secs": 3600}
    )
    produce(topic, *((f"k{number % 7}", b"%d" % number, {"X-Key": f"i{number}"}) for number in range(60)))
    produce(topic, ("k1", b"{}", {"X-Route": "domain/special"}), ("k1", b"{}", {"x-key": "i1"}))
    done = run(spark, shop, path, checkpoint, batch_messages=40)
    assert (done.received, done.started, done.duplicates, done.dead) == (62, 61, 1, 0)
    assert done.applied == {"idempotency_key": 60, "dispatch.playbook": 1}
    runs = shop.runs(path)
    assert len({message for message, _ in runs}) == len(runs) == 61
    assert sorted(playbook for _, playbook in runs) == ["domain/order"] * 60 + ["domain/special"]
    for number in range(4):
        offsets = [int(message.split(":")[2]) for message, _ in runs if message.split(":")[1] == str(number)]
        assert offsets == sorted(offsets)
    assert len(shop.events(path, "message.directives_applied")) == 61
    ends = {part: ranges[0][1] for part, ranges in shop.taken(path).items()}
    assert json.loads(Path(checkpoint, "offsets", "1").read_text().splitlines()[-1]).items() >= ends.items()
    consumer = Consumer({"bootstrap.servers": topic["brokers"], "group.id": topic["group"]})
    partitions = [TopicPartition(topic["topic"], number) for number in range(4)]
    committed = {
        f"{partition.topic}:{partition.partition}": partition.offset
        for partition in consumer.committed(partitions, timeout=60)
    }
    consumer.close()
    assert {part: at for part, at in committed.items() if at > 0} == ends

    # As after a kill of the driver before it wrote the commit log: Spark repeats the second micro-batch.
    for name in ("1", ".1.crc"):
        Path(checkpoint, "commits", name).unlink()
    produce(topic, ("k9", b"{}", {"x-key": "late"}))
    again = run(spark, shop, path, checkpoint, batch_messages=40)
    assert (again.received, again.known, again.started) == (23, 22, 1)
    assert len(shop.runs(path)) == 62


def test_a_stream_is_read_in_parallel_ranges_and_without_its_checkpoint_resumes_from_the_store(
    spark: SparkSession, shop: Shop, nats_server: NatsServer, checkpoint: str
) -> None:
    rig = stream(nats_server, 1_050)
    path = shop.subscription(
        "nats",
        **rig,
        spool={"ordering": "none"},
        runtime={"target": "spark", "batch": 500},
    )
    done = run(spark, shop, path, checkpoint)
    assert (done.received, done.started) == (1_050, 1_050)
    assert done.requests >= 4  # two tasks, two requests each
    asyncio.run(publish(rig, 5))
    later = run(spark, shop, path, f"{checkpoint}-lost", store=shop.store)
    assert (later.received, later.started, later.known) == (5, 5, 0)
    assert sorted(int(message) for message, _ in shop.runs(path)) == list(range(1, 1_056))
    ((part, taken),) = shop.taken(path).items()
    assert (part.split("@")[0], taken) == (rig["stream"], [[1, 1_056]])


def test_a_paused_stream_waits_max_in_flight_bounds_it_and_a_draining_one_ends(
    spark: SparkSession, shop: Shop, nats_server: NatsServer, checkpoint: str
) -> None:
    rig = stream(nats_server, 10)
    path = shop.subscription("limited", **rig, limits={"max_in_flight": 5})
    number = int(shop.control.register(path)["subscription_id"])
    shop.control.act(number, "activate")
    shop.control.act(number, "pause")
    with following(spark, shop, path, checkpoint) as job:
        wait_for(lambda: Path(checkpoint, "offsets", "0").exists() or job.has_ended, "a waiting micro-batch", 300)
        job.context.stop()
        wait_for(lambda: job.has_ended, "the end of the waiting job", 300)
    assert (job.done, shop.runs(path)) == (ExecutionReport(), [])
    shop.control.act(number, "resume")
    with following(spark, shop, path, checkpoint) as job:
        wait_for(lambda: len(shop.runs(path)) == 10 or job.has_ended, "the runs", 300)
        assert [message for message, _ in shop.runs(path)] == [str(number) for number in range(1, 11)]
        assert Path(checkpoint, "offsets", "1").exists()  # five messages a micro-batch
        shop.control.act(number, "drain")
        wait_for(lambda: job.has_ended, "the end", 300)
    assert job.done.started == 10
    assert shop.control.status(number)["state"] == "DEACTIVATED"


def test_an_unavailable_broker_is_reported_and_retried(spark: SparkSession, shop: Shop, checkpoint: str) -> None:
    path = shop.subscription("outage", source="nats", url=f"nats://127.0.0.1:{free_port()}", stream="S")
    with pytest.raises(SourceUnavailable):
        run(spark, shop, path, checkpoint)
    with following(spark, shop, path, checkpoint) as job:
        wait_for(lambda: shop.events(path, "source.lost") or job.has_ended, "the event", 300)
        job.context.stop()
        wait_for(lambda: job.has_ended, "the end", 300)
    assert job.done == ExecutionReport()


def test_subscriptions_that_cannot_run_on_spark_are_rejected_with_the_remedy(
    spark: SparkSession, shop: Shop, topic: dict[str, Any], checkpoint: str
) -> None:
    produce(topic, ("k", b"1", {}))
    path = shop.subscription("ordered", **topic, spool={"ordering": "global"})
    with pytest.raises(OrderNotKept, match=r"has 4 partitions.* Use 'per_key', or a topic with one partition"):
        run(spark, shop, path, checkpoint)
    with pytest.raises(InvalidConfig, match=f"Start it with: tape pipeline run subscription {path}"):
        asyncio.run(RemoteRuntime(path, shop.control, "w").run())
    live = shop.subscription("live", **topic, runtime={"target": "dedicated-pool"})
    with pytest.raises(InvalidConfig, match=f"Run it with: tape subscription run {live}"):
        run(spark, shop, live, checkpoint)
    lost = shop.subscription("lost", **topic, dispatch={"playbook": "domain/nowhere"})
    with pytest.raises(PlaybookNotFound, match=f"Playbook not found: domain/nowhere, the dispatch.playbook of {lost}"):
        run(spark, shop, lost, checkpoint)
    assert shop.taken(lost) == {}


def test_a_reader_splits_offsets_and_fails_where_messages_were_deleted(nats_server: NatsServer) -> None:
    rig = stream(nats_server, 20)
    options = message_options(rig | {"maxOffsetsPerTrigger": "8"})
    reader = MessageReader(options)
    start = reader.initialOffset()
    ((part, first),) = start.items()
    assert first == 1
    reader.prepareForTriggerAvailableNow()
    asyncio.run(publish(rig, 1))
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) == {part: 9}
    assert reader.latestOffset({part: 19}, reader.getDefaultReadLimit()) == {part: 21}
    (piece,) = reader.partitions(start, {part: 9})
    rows = [row for batch in reader.read(piece) for row in batch.to_pylist()]
    assert [row["offset"] for row in rows] == list(range(1, 9))
    assert rows[0]["body"] == b'{"n": 0}'
    assert {(row["stretch_begin"], row["stretch_end"]) for row in rows} == {(1, 9)}  # vocabulary: released columns
    asyncio.run(purge(rig, 5))
    with pytest.raises(MessagesLost, match="offsets 1 to 4 of"):
        reader.partitions(start, {part: 9})
    reader.stop()
    careless = MessageReader(message_options(rig | {"failOnDataLoss": "false"}))
    (left,) = careless.partitions(start, {part: 9})
    assert left.value == (part, 5, 9)
    careless.stop()


def until_killed(process: subprocess.Popen[bytes], is_time: Callable[[], bool]) -> None:
    """Kill a process with SIGKILL as soon as the condition is true."""
    wait_for(lambda: is_time() or process.poll() is not None, "the moment to kill it", 550)
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.proof
@pytest.mark.timeout(1_800)
def test_a_driver_that_is_killed_twice_starts_one_execution_per_message(
    shop: Shop, nats_server: NatsServer, tmp_path: Path
) -> None:
    rig = stream(nats_server, 6_000)
    path = shop.subscription("killed", **rig, spool={"ordering": "none"})
    command = [TAPE, "pipeline", "run", "subscription", path, "--server", shop.url, "--master", "local[2]"]
    command += ["--checkpoint", str(tmp_path / "checkpoint"), "--batch-messages", "1500"]
    env = os.environ | {"JDK_JAVA_OPTIONS": QUICK_JVM}
    for goal in (500, 3_000):
        process = subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.DEVNULL)
        until_killed(process, lambda goal=goal: len(shop.runs(path)) >= goal)
    subprocess.run(command, cwd=tmp_path, env=env, check=True, timeout=600)
    runs = [int(message) for message, _ in shop.runs(path)]
    assert sorted(runs) == list(range(1, 6_001))
    assert list(shop.taken(path).values()) == [[[1, 6_001]]]
