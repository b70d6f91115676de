"""How many messages of a NATS stream become runs in a second? Beside a client that only fetches and acknowledges.

The stream keeps its messages on disk; a message counts when it is acknowledged: with Tape, when its run is durable.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from bench.lab import TAPE, TapeServer, stop
from bench.options import NAMES, Options
from bench.table import Table, count, ratio
from tape.client import AsyncTapeClient
from tape.subscriptions.api_client import Control

TITLE = "Subscriptions: messages of a NATS stream that become runs, beside a bare client"

BATCH = 500
STREAM = "BENCH"
PATH = "subscriptions/bench"
BODY = json.dumps({"order_id": 4711, "total": 12.5, "lines": [{"sku": "a-1", "n": 2}] * 3, "note": "x" * 100}).encode()
PLAYBOOK = """\
kind: Playbook
metadata: {path: bench/reading}
workflow:
  - {step: keep, tool: {kind: value, value: "{{ input.order_id }}"}}
"""
BARE = "a client that fetches and acknowledges, nothing else"


def run(options: Options) -> list[Table]:
    """Rounds of all contenders, one after the other; medians."""
    messages, rounds = options.scaled((3_000, 2), (100, 1))
    rates: dict[str, list[float]] = {}
    with nats_server(options.lab.fresh_folder()) as url:
        options.lab.run(fill(url, messages))
        for number in range(1, rounds + 1):
            options.report(f"{TITLE}: round {number} of {rounds}")
            rates.setdefault(BARE, []).append(options.lab.run(_bare(url, messages)))
            for store in options.stores:
                for label, measured in _contenders(options, store, url, messages):
                    rates.setdefault(f"{NAMES[store]}: {label}", []).append(measured())
    bare = median(rates[BARE])
    rows = [(label, count(median(found)), ratio(median(found), bare)) for label, found in rates.items()]
    notes = [
        f"{messages:,} messages of {len(BODY)} bytes, {BATCH} a fetch; median of {rounds} rounds",
        "begun: the run and its command are durable, and the message is acknowledged",
        "completed: a worker with 8 slots has run its one step, recorded before and after, and ended it",
    ]
    return [Table(TITLE, ("", "messages/s", "÷ bare"), rows, notes)]


def _contenders(options: Options, store: str, url: str, messages: int) -> Iterator[tuple[str, Callable[[], float]]]:
    for is_batched in (False, True):
        kind = "batch" if is_batched else "single"

        def inside(is_batched: bool = is_batched) -> float:
            with TapeServer(options.lab.fresh_store(store), "--log-level", "error") as server:
                return options.lab.run(measure(server, url, messages, is_batched, "local"))

        def remote(is_batched: bool = is_batched) -> float:
            with TapeServer(options.lab.fresh_store(store), "--log-level", "error") as server:
                return options.lab.run(measure(server, url, messages, is_batched, "dedicated-pool"))

        yield f"begun, in the server, {kind} dispatch", inside
        yield f"begun, `tape subscription run` over HTTP, {kind} dispatch", remote

    def completed() -> float:
        with TapeServer(options.lab.fresh_store(store), "--log-level", "error") as server, _worker(server.url):
            return options.lab.run(measure(server, url, messages, True, "local", to_the_end=True))

    yield "completed, in the server, batch dispatch", completed


async def measure(
    server: TapeServer, url: str, messages: int, is_batched: bool, target: str, *, to_the_end: bool = False
) -> float:
    """How many messages of the stream a runtime of that target makes runs of in a second."""
    control = Control(server.http_url)
    control.register_document(PLAYBOOK)
    spec = {
        "source": "nats",
        "mode": "pull",
        "url": url,
        "stream": STREAM,
        "consumer": "tape",
        "runtime": {"target": target, "batch": BATCH},
        "dispatch": {"playbook": "bench/reading", "execution_pool": "iot", "batch_dispatch": is_batched},
    }
    async with contextlib.AsyncExitStack() as stack:
        consumer = await stack.enter_async_context(_consumer(url))
        document = {"kind": "Subscription", "metadata": {"path": PATH}, "spec": spec}
        control.register_document(json.dumps(document))
        control.act(control.register(PATH)["subscription_id"], "activate")
        if target != "local":
            stack.enter_context(_runtime(server))
        # From the first message on: when a runtime notices that it is to run is not what is measured.
        await _until(consumer, lambda info: info.delivered.consumer_seq > 0)
        began = time.perf_counter()
        await _until(consumer, lambda info: info.num_pending == 0 and info.num_ack_pending == 0)
        if to_the_end:
            async with AsyncTapeClient(server.url) as client:
                while await _left(client):
                    await asyncio.sleep(0.02)
        return messages / (time.perf_counter() - began)


async def _left(client: AsyncTapeClient) -> int:
    stats = (await client.get_reaction_stats("pool:iot")).stats[0]
    return int(stats.lag + stats.pending + stats.claimed)


async def _bare(url: str, messages: int) -> float:
    import nats

    async with _consumer(url):
        connection = await nats.connect(url)
        fetching = await connection.jetstream().pull_subscribe_bind("tape", STREAM)
        began, left = time.perf_counter(), messages
        while left:
            found = await fetching.fetch(min(BATCH, left), timeout=10)
            for message in found:
                await message.ack()
            left -= len(found)
        await connection.flush()
        rate = messages / (time.perf_counter() - began)
        await connection.close()
        return rate


@contextlib.asynccontextmanager
async def _consumer(url: str) -> AsyncIterator[Callable[[], Any]]:
    """A consumer that has seen nothing yet; a function that looks at it."""
    import nats

    connection = await nats.connect(url)
    jetstream = connection.jetstream()
    try:
        await jetstream.add_consumer(STREAM, durable_name="tape", ack_policy="explicit", max_ack_pending=-1)
        yield lambda: jetstream.consumer_info(STREAM, "tape")
    finally:
        await jetstream.delete_consumer(STREAM, "tape")
        await connection.close()


async def _until(look: Callable[[], Any], holds: Callable[[Any], bool]) -> None:
    while not holds(await look()):
        await asyncio.sleep(0.01)


async def fill(url: str, messages: int) -> None:
    """A stream with so many messages."""
    import nats

    connection = await nats.connect(url)
    jetstream = connection.jetstream()
    await jetstream.add_stream(name=STREAM, subjects=[f"{STREAM}.>"])
    for start in range(0, messages, BATCH):
        some = range(start, min(start + BATCH, messages))
        await asyncio.gather(*(jetstream.publish(f"{STREAM}.orders", BODY) for _ in some))
    await connection.close()


@contextlib.contextmanager
def nats_server(folder: Path) -> Iterator[str]:
    """A NATS server that keeps streams in a folder; its address."""
    log = folder / "log"
    program = Path(sys.executable).with_name("nats-server")
    command = [str(program), "-js", "-a", "127.0.0.1", "-p", "-1", "-sd", str(folder), "-l", str(log)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        while not log.exists() or "Server is ready" not in log.read_text():
            time.sleep(0.01)
        (address,) = re.findall(r"client connections on (\S+)", log.read_text())
        yield f"nats://{address}"
    finally:
        stop(process)


@contextlib.contextmanager
def _runtime(server: TapeServer) -> Iterator[None]:
    command = [TAPE, "subscription", "run", PATH, "--server", server.http_url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield
    finally:
        stop(process)


@contextlib.contextmanager
def _worker(url: str) -> Iterator[None]:
    command = [TAPE, "worker", "--pool", "iot", "-c", "8", "--url", url, "--log-level", "error"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield
    finally:
        stop(process)
