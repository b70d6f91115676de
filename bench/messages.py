"""How many messages of a NATS stream become runs on Spark in a second? Beside one process of `tape subscription run`.

Spark reads the stream by sequence, on this machine, with two cores; its session is open and warm before it is measured.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench.lab import TapeServer
from bench.options import NAMES, Options
from bench.subscriptions import BATCH, BODY, PATH, PLAYBOOK, STREAM, fill, measure, nats_server
from bench.table import Table, count, ratio
from tape.pipeline.job_context import JobContext
from tape.pipeline.jobs.subscription import StreamOptions, run_subscription
from tape.pipeline.session import open_session
from tape.subscriptions.api_client import Control

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TITLE = "Subscriptions on Spark: messages that become runs, beside one process of `tape subscription run`"

PROCESS = "`tape subscription run` over HTTP, batch dispatch"
# What differs between the contenders on Spark: the order that is kept, and who writes the runs.
WAYS = {
    "Spark, in the order of the stream, over HTTP": ("per_key", False),
    "Spark, in parallel ranges, over HTTP": ("none", False),
    "Spark, in parallel ranges, into the store": ("none", True),
}


def run(options: Options) -> list[Table]:
    """Rounds of all contenders, one after the other; medians."""
    messages, rounds = options.scaled((10_000, 2), (600, 1))
    rates: dict[str, list[float]] = {}
    folder = options.lab.fresh_folder()
    spark = open_session("bench", "local[2]", {"spark.local.dir": str(folder)})
    try:
        with nats_server(options.lab.fresh_folder()) as url:
            options.lab.run(fill(url, messages))
            options.report(f"{TITLE}: warming up")
            _on_spark(options, spark, options.stores[0], url, "none", into_store=False)
            for number in range(1, rounds + 1):
                options.report(f"{TITLE}: round {number} of {rounds}")
                for store in options.stores:
                    with TapeServer(options.lab.fresh_store(store), "--log-level", "error") as server:
                        rate = options.lab.run(measure(server, url, messages, True, "dedicated-pool"))
                    rates.setdefault(f"{NAMES[store]}: {PROCESS}", []).append(rate)
                    for label, (ordering, into_store) in WAYS.items():
                        taken = _on_spark(options, spark, store, url, ordering, into_store=into_store)
                        rates.setdefault(f"{NAMES[store]}: {label}", []).append(messages / taken)
    finally:
        spark.stop()
    rows = []
    for label, found in rates.items():
        process = median(rates[f"{label.partition(': ')[0]}: {PROCESS}"])
        rows.append((label, count(median(found)), ratio(median(found), process)))
    notes = [
        f"{messages:,} messages of {len(BODY)} bytes, {BATCH} a request; median of {rounds} rounds",
        "the process is measured from its first message to its last acknowledgement; Spark from the start of its query"
        " to its end, which takes about a second without any message",
        "server, NATS and both cores of Spark share this machine",
    ]
    return [Table(TITLE, ("", "messages/s", "÷ one process"), rows, notes)]


def _on_spark(options: Options, spark: SparkSession, store: str, url: str, ordering: str, *, into_store: bool) -> float:
    """Seconds that all messages take."""
    store_url = options.lab.fresh_store(store)
    with TapeServer(store_url, "--log-level", "error") as server:
        control = Control(server.http_url)
        control.register_document(PLAYBOOK)
        spec = {
            "source": "nats",
            "mode": "pull",
            "url": url,
            "stream": STREAM,
            "runtime": {"target": "spark", "batch": BATCH},
            "dispatch": {"playbook": "bench/reading", "execution_pool": "iot"},
            "spool": {"ordering": ordering},
        }
        control.register_document(json.dumps({"kind": "Subscription", "metadata": {"path": PATH}, "spec": spec}))
        checkpoint = Path(options.lab.fresh_folder(), "checkpoint")
        stream_options = StreamOptions(str(checkpoint), store=store_url if into_store else "")
        began = time.perf_counter()
        done = run_subscription(spark, server.http_url, "", PATH, JobContext("bench", quiet=True), stream_options)
        took = time.perf_counter() - began
        assert done.started == done.received > 0, done
        return took
