"""Fan-out hands every entry to a receiver, each run in order, and keeps its place."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from pyspark.sql import SparkSession

from tape.cli.relay import open_sink
from tape.errors import SinkUnavailable
from tape.journal.entry import Entry
from tape.pipeline.jobs.fanout import fanout, publish
from tape.pipeline.running import Running
from tests.pipeline.conftest import fill, order
from tests.pipeline.test_reading import entries_in


class Receiver:
    """A webhook that remembers what it was given, in order."""

    def __init__(self) -> None:
        self.runs: dict[str, list[int]] = defaultdict(list)
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.runs[body["run_id"]].append(body["seq"])
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/hook"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


def test_every_run_arrives_in_order_and_the_next_round_goes_on(
    spark: SparkSession, store_url: str, receiver: Receiver
) -> None:
    sink = partial(open_sink, f"webhook:{receiver.url}", headers=[], secret="", allow_private=True, concurrency=1)
    running = Running("fanout", quiet=True)
    fill(store_url, [order(number) for number in range(1, 121)])
    assert fanout(spark, store_url, "hook", sink, running, round_entries=70) == 120
    assert fanout(spark, store_url, "hook", sink, running) == 0
    fill(store_url, [order(number) for number in range(121, 141)])
    assert fanout(spark, store_url, "hook", sink, running, where='kind == "order"') == 16
    wanted = defaultdict(list)
    for entry in entries_in(store_url):
        if entry.global_seq <= 120 or entry.kind == "order":
            wanted[entry.run_id].append(entry.seq)
    assert receiver.runs == wanted


class Moody:
    """A sink that fails so often before it takes something."""

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
    entries, patient, lost = entries_in(sqlite_url), Moody(2), Moody(9)
    publish(patient, entries, pauses_s=(0, 0, 0))
    assert patient.taken == [1, 2, 3, 4]
    with pytest.raises(SinkUnavailable):
        publish(lost, entries, pauses_s=(0, 0))
    assert lost.taken == [1]
