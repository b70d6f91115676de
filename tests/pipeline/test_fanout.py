"""Fan-out publishes every entry to a receiver, each run in order, and resumes from its checkpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from pyspark.sql import SparkSession

from tape.base.retry import RetryPolicy
from tape.errors import CheckpointRefused, FanoutBlocked, InvalidInput, SinkUnavailable
from tape.model.entry import Entry
from tape.pipeline.fanout_task import RejectedEntries, publish_with_retry
from tape.pipeline.job_context import JobContext
from tape.pipeline.jobs.fanout import fanout, sink_opener
from tape.pipeline.session import QUICK_JVM
from tape.sinks.batch_publisher import BatchPublisher
from tape.sinks.metrics import RelayMetrics
from tests.pipeline.conftest import fill, order
from tests.pipeline.test_journal_source import entries_in
from tests.services import wait_for


class Receiver:
    """A webhook that remembers what it was given, in order."""

    def __init__(self) -> None:
        self.runs: dict[str, list[int]] = defaultdict(list)
        self.refused: set[tuple[str, int]] = set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                is_refused = (body["run_id"], body["seq"]) in receiver.refused
                if not is_refused:
                    receiver.runs[body["run_id"]].append(body["seq"])
                self.send_response(422 if is_refused else 204)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def seen(self) -> set[tuple[str, int]]:
        return {(run, seq) for run, numbers in list(self.runs.items()) for seq in list(numbers)}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/hook"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


def hook(receiver: Receiver) -> Any:
    return sink_opener(f"webhook:{receiver.url}", headers=[], secret="", allow_private=True)


def test_every_run_arrives_in_order_and_the_next_round_goes_on(
    spark: SparkSession, store_url: str, receiver: Receiver
) -> None:
    running = JobContext("fanout", quiet=True)
    where = {"where": 'kind == "order"'}
    fill(store_url, [order(number) for number in range(1, 121)])
    assert fanout(spark, store_url, "hook", hook(receiver), running, round_entries=70, **where).entries == 96
    assert fanout(spark, store_url, "hook", hook(receiver), running, **where).entries == 96
    fill(store_url, [order(number) for number in range(121, 141)])
    assert fanout(spark, store_url, "hook", hook(receiver), running, **where).entries == 112
    wanted = defaultdict(list)
    for entry in entries_in(store_url):
        if entry.kind == "order":
            wanted[entry.run_id].append(entry.seq)
    assert receiver.runs == wanted
    with pytest.raises(CheckpointRefused, match="other options: where was 'kind == \"order\"', now it is ''"):
        fanout(spark, store_url, "hook", hook(receiver), running)


@pytest.mark.parametrize("policy", ["skip", "dead_letter", "block"])
def test_what_is_never_taken_is_left_out_written_down_or_waited_for(
    spark: SparkSession, sqlite_url: str, receiver: Receiver, tmp_path: Path, policy: Any
) -> None:
    fill(sqlite_url, [order(number) for number in range(1, 41)])
    entries = entries_in(sqlite_url)
    refused = {(entries[number].run_id, entries[number].seq) for number in (9, 29)}
    receiver.refused |= refused
    dead_letters = tmp_path / "dead.jsonl"
    if policy == "dead_letter":  # a round that was killed after it had written this
        dead_letters.write_text('{"global_seq": 10, "error": "…"}\n{"glob')
    running = JobContext("fanout", quiet=True)
    options = {"policy": policy, "dead_letter": str(dead_letters) if policy == "dead_letter" else ""}
    taken = {(entry.run_id, entry.seq) for entry in entries} - refused
    if policy == "block":
        with pytest.raises(FanoutBlocked, match=r"rejects run-2/3: .*The checkpoint is before that entry, at 9"):
            fanout(spark, sqlite_url, "hook", hook(receiver), running, **options)
        receiver.refused.clear()
        fanout(spark, sqlite_url, "hook", hook(receiver), running, **options)
        assert receiver.seen == taken | refused
        return
    done = fanout(spark, sqlite_url, "hook", hook(receiver), running, **options)
    assert receiver.seen == taken
    assert (done.entries, done.skipped, done.dead_letters) == (38, 2 * (policy == "skip"), 2 * (policy != "skip"))
    text = generate_latest(running.registry).decode()
    assert f'what="{"skipped" if policy == "skip" else "dead letters"}"}} 2.0' in text
    if policy == "dead_letter":
        first, half, last = dead_letters.read_text().splitlines()
        assert (json.loads(first)["global_seq"], half) == (10, '{"glob'), "none is written twice, none onto another"
        assert json.loads(last)["global_seq"] == 30
        assert "SinkRejected" in json.loads(last)["error"]


def test_dead_letters_may_be_a_subject_and_are_never_published_themselves(
    spark: SparkSession, sqlite_url: str, receiver: Receiver
) -> None:
    fill(sqlite_url, [order(number) for number in range(1, 21)])
    receiver.refused.add(("run-1", 1))
    running = JobContext("fanout", quiet=True)
    options: Any = {"policy": "dead_letter", "dead_letter": "/tape/dead/entry"}
    with pytest.raises(InvalidInput, match="is itself matched by"):
        fanout(spark, sqlite_url, "hook", hook(receiver), running, **options)
    for _ in range(2):
        fanout(spark, sqlite_url, "hook", hook(receiver), running, subject="/tape/order/**", **options)
    (dead_letter,) = [entry for entry in entries_in(sqlite_url) if entry.kind == "dead"]
    assert (dead_letter.payload["run_id"], dead_letter.payload["seq"]) == ("run-1", 1)


class FlakySink:
    """A sink that fails a number of times before it accepts an entry."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.taken: list[int] = []

    def publish(self, entry: Entry) -> None:
        if self.failures and len(self.taken) == 1:
            self.failures -= 1
            raise SinkUnavailable("not now")
        self.taken.append(entry.global_seq)


def test_a_sink_that_fails_for_a_while_gets_each_entry_once_and_in_order(sqlite_url: str) -> None:
    fill(sqlite_url, [order(number) for number in range(1, 5)])
    entries, flaky, failing = entries_in(sqlite_url), FlakySink(2), FlakySink(9)
    metrics = RelayMetrics()
    assert publish_with_retry(
        BatchPublisher(flaky, RejectedEntries("block"), metrics),
        entries,
        metrics,
        policy=RetryPolicy(max_attempts=4, initial_interval_s=0),
    ) == (
        None,
        [],
    )
    assert flaky.taken == [1, 2, 3, 4]
    assert metrics.status.retries == 2
    reason, left = publish_with_retry(
        BatchPublisher(failing, RejectedEntries("block"), metrics),
        entries,
        metrics,
        policy=RetryPolicy(max_attempts=3, initial_interval_s=0),
    )
    assert isinstance(reason, SinkUnavailable)
    assert left == entries[1:]
    assert failing.taken == [1]


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_a_driver_killed_in_the_middle_leaves_nothing_out_and_no_run_out_of_order(
    spark: SparkSession, store_url: str, receiver: Receiver
) -> None:
    fill(store_url, [order(number) for number in range(1, 2_001)])
    command = [sys.executable, "-m", "tape.pipeline.jobs.fanout", "--sink", f"webhook:{receiver.url}", "--name", "hook"]
    command += ["--store", store_url, "--allow-private", "--round-entries", "300", "--master", "local[2]"]
    command += ["--conf", f"spark.driver.extraJavaOptions={QUICK_JVM}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0) as working:
        try:
            wait_for(lambda: len(receiver.seen) > 450, "half of the entries", 300)
        finally:
            os.killpg(working.pid, signal.SIGKILL)
    assert len(receiver.seen) < 2_000
    target = f"webhook:{receiver.url}"
    fanout(spark, store_url, "hook", hook(receiver), JobContext("fanout", quiet=True), target=target, round_entries=300)
    wanted = defaultdict(list)
    for entry in entries_in(store_url):
        wanted[entry.run_id].append(entry.seq)
    assert {run: list(dict.fromkeys(numbers)) for run, numbers in receiver.runs.items()} == wanted
