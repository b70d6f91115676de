"""How late an entry reaches those who follow, under a steady stream of appends."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from dataclasses import dataclass

from bench.lab import Lab, TapeServer, stop
from bench.load import Outcome, event
from bench.options import Options
from bench.peers.servers import ROOT
from bench.table import Table, count, milliseconds
from tape.client import AsyncTapeClient

TITLE = "Live: from just before append to receipt, at 1,000 entries/s on SQLite"

RATE = 1_000
SUBSCRIBERS = (1, 100)
SLACK_S = 60


@dataclass(frozen=True)
class Stream:
    """What was sent and what was seen."""

    sent_per_second: float
    received: Outcome


def run(options: Options) -> list[Table]:
    """One subscriber, then a hundred."""
    entries = RATE * options.scaled(15, 1)
    rows = []
    for subscribers in SUBSCRIBERS:
        options.report(f"{TITLE}: {subscribers} subscribers")
        with TapeServer(options.lab.fresh_store("sqlite")) as server:
            stream = measure(options.lab, server.url, subscribers, entries)
        received = stream.received
        rows.append(
            [
                count(subscribers),
                count(stream.sent_per_second),
                count(received.rate),
                milliseconds(received.p50_ms),
                milliseconds(received.p99_ms),
            ]
        )
    columns = ["subscribers", "appended/s", "delivered/s", "p50 ms", "p99 ms"]
    notes = [
        "every subscriber gets every entry through Follow; all are in one process, each with a channel of its own",
        "the appending client and the server are processes of their own; the latency includes making the entry durable",
    ]
    return [Table(TITLE, columns, rows, notes)]


def measure(lab: Lab, url: str, subscribers: int, entries: int) -> Stream:
    """Append at a steady pace while subscribers in another process take the time."""
    command = [sys.executable, "-m", "bench.subscriber", url, str(subscribers), str(entries)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"the subscribers ended with {process.wait()}")
        rate = lab.run(_append_steadily(url, entries))
        answer, _ = process.communicate(timeout=SLACK_S)
        return Stream(rate, Outcome(**json.loads(answer)))
    finally:
        stop(process)


async def _append_steadily(url: str, entries: int) -> float:
    """Appends begin when it is their time, whether or not earlier ones are durable; the rate that came of it."""
    async with AsyncTapeClient(url) as client:
        await client.head()

        async def append(number: int) -> None:
            subject, run_id, payload = event(number)
            await client.append(subject, {"sent_ns": time.monotonic_ns(), **payload}, run_id=run_id)

        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(entries):
                await asyncio.sleep(max(began + number / RATE - time.monotonic(), 0))
                group.create_task(append(number))
        return entries / (time.monotonic() - began)
