"""The memory of a runtime during an outage of its server, while messages go to a spool in a folder."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import nats
from tests.broker_services import NatsServer
from tests.services import free_port

from bench.lab import TAPE, TapeServer, resident_bytes, stop
from bench.options import Options
from bench.table import NOTHING, Table, count
from tape.subscriptions.api_client import Control

TITLE = "Outage: the memory of a runtime while its server is unavailable"

PATH = "subscriptions/readings"
DEVICES = 1_000
FLOWING_S = 10.0
BODY = "x" * 200
MEGABYTE = 1 << 20
PLAYBOOK = (
    "kind: Playbook\nmetadata: {path: bench/reading}\nworkflow: [{step: keep, tool: {kind: value, value: done}}]\n"
)
SPEC = """
kind: Subscription
metadata: {{path: subscriptions/readings}}
spec:
  source: nats
  mode: pull
  url: {url}
  stream: READINGS
  consumer: readings
  create: true
  runtime: {{batch: 200}}
  dispatch: {{playbook: bench/reading, batch_dispatch: true}}
  spool:
    mode: buffer_and_ack
    backend: local_disk
    path: {folder}
    ordering: per_key
    ordering_key: device
    retention: {{max_bytes: 100Gi}}
    circuit: {{trip_after: 3, probe_after_ms: 5000}}
"""


class Sample(NamedTuple):
    """The runtime at one moment."""

    at_s: float
    phase: str
    resident: int
    spooled: float
    replayed: float
    waiting: float


def run(options: Options) -> list[Table]:
    """Two tables: by phase, and the outage as it went."""
    return options.lab.run(_measure(options))


async def _measure(options: Options) -> list[Table]:
    outage_s = 60 * (options.minutes if options.minutes is not None else options.scaled(10.0, 0.05))
    rate = options.rate or options.scaled(1_000, 200)
    store, http = options.lab.fresh_store("sqlite"), f"127.0.0.1:{free_port()}"
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(NatsServer())
        server = TapeServer(store, http_listen=http)
        with server:
            await _register(server, broker, str(options.lab.fresh_folder()))
            watch = stack.enter_context(_runtime(server.http_url))
            sending = asyncio.create_task(_send(broker, rate))
            flowing_s = options.scaled(FLOWING_S, 1.0)
            await _while(watch, "all is well", options, lambda since: since < flowing_s)
        await _while(watch, "the server is unavailable", options, lambda since: since < outage_s)
        sending.cancel()
        sent = await sending
        with TapeServer(store, http_listen=http):
            await _while(watch, "it drains", options, lambda since: since < 5 or watch.samples[-1].waiting > 0)
    return [_by_phase(watch.samples, sent, rate), _as_it_went(watch.samples)]


class Watch:
    """Looks at a runtime: its memory, and what it counts."""

    def __init__(self, pid: int, metrics: str) -> None:
        self._pid = pid
        self._metrics = metrics
        self._began = time.perf_counter()
        self.samples: list[Sample] = []

    def look(self, phase: str) -> None:
        """Take a sample."""
        with urllib.request.urlopen(self._metrics, timeout=60) as response:
            text = response.read().decode()

        def value(name: str) -> float:
            found = re.findall(rf"^tape_subscription_{name}{{[^}}]*}} (\S+)$", text, re.MULTILINE)
            return float(found[0]) if found else 0.0

        counts = (value("spooled_total"), value("replayed_total"), value("spool_items"))
        self.samples.append(Sample(time.perf_counter() - self._began, phase, resident_bytes(self._pid), *counts))


async def _while(watch: Watch, phase: str, options: Options, goes_on: Callable[[float], bool]) -> None:
    began = time.perf_counter()
    while True:
        await asyncio.to_thread(watch.look, phase)
        last = watch.samples[-1]
        options.report(f"{TITLE}: {phase}, {last.waiting:,.0f} wait, {last.resident / MEGABYTE:.1f} MB")
        if not goes_on(time.perf_counter() - began):
            return
        await asyncio.sleep(0.5)


async def _register(server: TapeServer, broker: NatsServer, folder: str) -> None:
    connection = await nats.connect(f"nats://{broker.address}")
    await connection.jetstream().add_stream(name="READINGS", subjects=["READINGS.>"])
    await connection.close()
    control = Control(server.http_url)
    control.register_document(PLAYBOOK)
    control.register_document(SPEC.format(url=f"nats://{broker.address}", folder=folder))


@contextlib.contextmanager
def _runtime(http_url: str) -> Iterator[Watch]:
    metrics = f"127.0.0.1:{free_port()}"
    command = [TAPE, "subscription", "run", PATH, "--server", http_url, "--metrics-listen", metrics]
    process = subprocess.Popen([*command, "--log-level", "error"], stdout=subprocess.PIPE, text=True)
    try:
        watch = Watch(process.pid, f"http://{metrics}/metrics")
        while True:
            with contextlib.suppress(OSError):
                watch.look("all is well")
                break
            time.sleep(0.05)
        yield watch
    finally:
        stop(process)


async def _send(broker: NatsServer, rate: int) -> int:
    """Publish so many a second until cancelled; how many there were."""
    connection = await nats.connect(f"nats://{broker.address}")
    sent, began = 0, time.perf_counter()
    try:
        while True:
            for _ in range(int((time.perf_counter() - began) * rate) - sent):
                body = {"device": f"d{sent % DEVICES}", "n": sent, "text": BODY}
                await connection.publish("READINGS.in", json.dumps(body).encode())
                sent += 1
            await connection.flush(60)
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        return sent
    finally:
        await connection.close()


def _by_phase(samples: Sequence[Sample], sent: int, rate: int) -> Table:
    rows = []
    for phase in dict.fromkeys(sample.phase for sample in samples):
        some = [sample for sample in samples if sample.phase == phase]
        seconds = some[-1].at_s - some[0].at_s
        moved = some[-1].spooled + some[-1].replayed - some[0].spooled - some[0].replayed
        rows.append(
            [
                phase,
                f"{seconds:.0f}",
                count(moved) if moved else NOTHING,
                count(moved / seconds) if moved else NOTHING,
                *(_megabytes(each) for each in (some[0].resident, some[-1].resident, max(s.resident for s in some))),
                _slope(some),
            ]
        )
    last = samples[-1]
    return Table(
        "Outage: the memory of a runtime, MB",
        ["phase", "seconds", "messages moved", "a second", "at its begin", "at its end", "most", "a 100,000 messages"],
        rows,
        [
            f"{count(sent)} messages of {len(BODY) + 50} bytes at {count(rate)} a second, {DEVICES:,} lanes, a folder;"
            f" {count(last.spooled)} were spooled, {count(last.replayed)} replayed, {count(last.waiting)} wait.",
            "The last column is the slope of a line through the second half of a phase, memory over messages moved.",
        ],
    )


def _as_it_went(samples: Sequence[Sample]) -> Table:
    step = max(1, len(samples) // 20)
    chosen = [*samples[::step], samples[-1]]
    return Table(
        "Outage: as it went",
        ["second", "phase", "wait", "memory, MB"],
        [[f"{each.at_s:.0f}", each.phase, count(each.waiting), _megabytes(each.resident)] for each in chosen],
    )


def _slope(some: Sequence[Sample]) -> str:
    half = some[len(some) // 2 :]
    xs = [(sample.spooled + sample.replayed) / 100_000 for sample in half]
    ys = [sample.resident / MEGABYTE for sample in half]
    if len(half) < 3 or xs[-1] - xs[0] < 0.01:
        return NOTHING
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((each - x) ** 2 for each in xs)
    return f"{sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / spread:+.2f}"


def _megabytes(size: int) -> str:
    return f"{size / MEGABYTE:.1f}"
