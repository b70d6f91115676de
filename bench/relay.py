"""What the relay costs: the same client in a bare loop, and through the relay with its cursor and its order."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.lab import TapeServer, stop
from bench.options import Options
from bench.table import NOTHING, Table, count, ratio
from tape import TapeClient
from tape.sinks import FnSink, NatsSink, WebhookSink
from tape.sinks.relay import run_outbox_relay

TITLE = "Relay: from the journal to a receiver"

ROUNDS = 3
BATCH = 512
# A receiver that does next to nothing, so that it is not what is measured.
RECEIVER = """
import asyncio, sys
import uvloop
async def serve(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\\r\\n\\r\\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\\r\\n")[0])
            await reader.readexactly(length)
            writer.write(b"HTTP/1.1 204 No Content\\r\\n\\r\\n")
    except asyncio.IncompleteReadError:
        writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
uvloop.run(main())
"""
STREAM = """
import asyncio, sys
import nats
async def main():
    connection = await nats.connect(sys.argv[1])
    await connection.jetstream().add_stream(name="bench", subjects=["bench.>"], storage="memory")
    await connection.close()
asyncio.run(main())
"""


def run(options: Options) -> list[Table]:
    """Entries per second, bare and relayed."""
    entries = options.scaled(20_000, 300)
    store = options.lab.filled_store("sqlite", entries)
    rows = []
    receiver = subprocess.Popen([sys.executable, "-c", RECEIVER], stdout=subprocess.PIPE, text=True)
    try:
        assert receiver.stdout is not None
        url = f"http://127.0.0.1:{int(receiver.stdout.readline())}/"
        with TapeServer(store) as server, TapeClient(server.url) as client:
            every = _all(client, entries)
            folder = options.lab.fresh_folder()

            def measure(name: str, make: Callable[[], Any], publish: Callable[[Any, list[Any]], None]) -> None:
                options.report(f"{TITLE}: {name}")
                rates: list[tuple[float, float]] = []
                for number in range(ROUNDS):  # in turns, so that both meet the same noise
                    cursor = folder / f"{name}-{number}.json"
                    rates.append((_bare(make, publish, every), _relayed(make, server.url, cursor, entries)))
                bare, relayed = (statistics.median(rate) for rate in zip(*rates, strict=True))
                rows.append([name, count(bare), count(relayed), ratio(relayed, bare), "≥ 0.7×"])

            measure("a function that does nothing", lambda: FnSink(lambda entry: None), _one_by_one)
            rows[-1][-1] = NOTHING
            measure("HTTP, one at a time", lambda: WebhookSink(url, allow_private=True), _one_by_one)
            measure("HTTP, 4 runs at once", lambda: WebhookSink(url, allow_private=True, concurrency=4), _in_batches)
            nats = _nats(options.lab.fresh_folder())
            try:
                measure("NATS JetStream, 64 runs at once", lambda: NatsSink(nats[1], "bench.entries"), _in_batches)
            finally:
                stop(nats[0])
    finally:
        stop(receiver)
    return [
        Table(
            TITLE,
            ["to", "bare loop, entries/s", "relay, entries/s", "relay ÷ bare", "aim"],
            rows,
            [
                f"{entries:,} entries of 64 runs, median of {ROUNDS} rounds; the bare loop publishes entries that are"
                " already in memory",
                "the relay also reads the journal from a server on the same two hardware threads, and keeps its cursor"
                " on the disk after every batch",
            ],
        )
    ]


def _all(client: TapeClient, entries: int) -> list[Any]:
    found: list[Any] = []
    for batch in client.follow_batches():
        found += batch.entries
        if len(found) >= entries:
            break
    return found


def _one_by_one(sink: Any, entries: list[Any]) -> None:
    for entry in entries:
        sink.publish(entry)


def _in_batches(sink: Any, entries: list[Any]) -> None:
    for start in range(0, len(entries), BATCH):
        assert not any(sink.publish_batch(entries[start : start + BATCH]))


def _bare(make: Callable[[], Any], publish: Callable[[Any, list[Any]], None], entries: list[Any]) -> float:
    sink = make()
    publish(sink, entries[:10])
    began = time.perf_counter()
    publish(sink, entries)
    seconds = time.perf_counter() - began
    sink.close()
    return len(entries) / seconds


def _relayed(make: Callable[[], Any], url: str, cursor: Path, entries: int) -> float:
    sink = make()
    began = time.perf_counter()
    run_outbox_relay(url, sink, cursor_path=str(cursor), once=True)
    seconds = time.perf_counter() - began
    sink.close()
    return entries / seconds


def _nats(folder: Path) -> tuple[subprocess.Popen[str], str]:
    command = [str(Path(sys.executable).with_name("nats-server")), "-a", "127.0.0.1", "-p", "-1", "-js"]
    command += ["-sd", str(folder), "--ports_file_dir", str(folder)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, text=True)
    while not (files := list(folder.glob("*.ports"))) or not files[0].read_text().strip():
        time.sleep(0.01)
    url = str(json.loads(files[0].read_text())["nats"][0])
    subprocess.run([sys.executable, "-c", STREAM, url], check=True)
    return process, url
