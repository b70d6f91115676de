"""How many events reach how many readers over HTTP, how late, and what a reader costs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass

from bench.lab import Lab, TapeServer
from bench.options import Options
from bench.peers.nchan import nchan
from bench.peers.servers import NotInstalled, free_port, running
from bench.readers import Received, reading
from bench.table import NOTHING, Table, count, milliseconds, ratio
from tape.client import AsyncTapeClient
from tape.journal.journal import Journal
from tape.model.entry import Draft
from tape.store import open_database

TITLE = "Stream: events over HTTP"

CALLERS = 64
READERS = (100, 1_000)
RATE = 1_000
FLAGS = ("--max-subscribers-per-session", "20000", "--subscriber-buffer-size", "100000")
TAPE_PATH = "/v1/events?type=load.made"

Publish = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Contender:
    """A server with a stream: where readers connect, and how events get in."""

    port: int
    path: str
    publishing: Callable[[int], contextlib.AbstractAsyncContextManager[list[Publish]]]


def run(options: Options) -> list[Table]:
    """Fan-out beside peers, then Tape alone: latency, replay, memory, past connections."""
    return [_fan_out(options), _alone(options)]


# ── fan-out ──────────────────────────────────────────────────────────────────────────────────────


def _fan_out(options: Options) -> Table:
    rows = []
    for readers in options.scaled(READERS, (10,)):
        events = options.scaled({100: 20_000, 1_000: 4_000}, {10: 200})[readers]
        found: dict[str, Received | str] = {}
        for name, (open_, share) in CONTENDERS.items():
            options.report(f"{TITLE}: {name}, {readers} readers")
            try:
                with open_(options.lab) as contender:
                    found[name] = _flood(options.lab, contender, readers, int(events * share))
            except NotInstalled as missing:
                found[name] = str(missing)
        rows += [_row(name, readers, outcome, found["nginx nchan"]) for name, outcome in found.items()]
    columns = ["server, readers", "events", "delivered/s", "beside nchan", "p50 ms", "p99 ms", "missing"]
    notes = [
        f"events of 250 bytes, published by {CALLERS} callers as fast as they are taken; every reader gets every event",
        "one process each; Tape makes every event durable first (SQLite), the others keep them in memory",
        "delivered/s from the first publish to the last receipt; latency from just before the publish",
        "the readers are one C program of ours on the same machine, as are the publishers",
    ]
    return Table(f"{TITLE}, fan-out", columns, rows, notes)


def _flood(lab: Lab, contender: Contender, readers: int, events: int) -> Received:
    with reading(lab, contender.port, contender.path, readers, events) as connected:
        began = lab.run(_publish(contender, events))
        received = connected.received()
    return Received(**{**received.__dict__, "first_ns": began})


async def _publish(contender: Contender, events: int) -> int:
    async with contender.publishing(CALLERS) as callers:
        left = iter(range(events))
        began = time.monotonic_ns()

        async def call(publish: Publish) -> None:
            for _ in left:
                await publish()

        await asyncio.gather(*map(call, callers))
        return began


def _row(name: str, readers: int, outcome: Received | str, beside: Received | str) -> list[str]:
    label = f"{name}, {readers:,}"
    if isinstance(outcome, str):
        return [f"{label} ({outcome})", *[NOTHING] * 6]
    theirs = None if isinstance(beside, str) else _rate(beside)
    return [
        label,
        count(outcome.wanted / readers),
        count(_rate(outcome)),
        ratio(_rate(outcome), theirs),
        milliseconds(outcome.p50_ms),
        milliseconds(outcome.p99_ms),
        count(outcome.wanted - outcome.events),
    ]


def _rate(received: Received) -> float:
    return received.events / ((received.last_ns - received.first_ns) / 1e9)


def _payload() -> dict[str, object]:
    return {"sent_ns": time.monotonic_ns(), "fill": "x" * 210}


# ── the contenders ───────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _tape(lab: Lab) -> Iterator[Contender]:
    with TapeServer(lab.fresh_store("sqlite"), *FLAGS) as server:
        yield _tape_contender(server)


def _tape_contender(server: TapeServer) -> Contender:
    @contextlib.asynccontextmanager
    async def publishing(callers: int) -> AsyncIterator[list[Publish]]:
        async with AsyncTapeClient(server.url) as client:
            await client.head()

            async def publish() -> None:
                await client.append("/tape/load/made", _payload())

            yield [publish] * callers

    return Contender(_port(server), TAPE_PATH, publishing)


def _port(server: TapeServer) -> int:
    return int(server.http_url.rpartition(":")[2])


@contextlib.contextmanager
def _nchan(lab: Lab) -> Iterator[Contender]:
    with nchan(lab.fresh_folder()) as port:
        yield Contender(port, "/sub", _posting(port))


@contextlib.contextmanager
def _naive(lab: Lab) -> Iterator[Contender]:
    port = free_port()
    with running([sys.executable, "-m", "bench.peers.naive", str(port)], sys.executable, port):
        yield Contender(port, "/sub", _posting(port))


def _posting(port: int) -> Callable[[int], contextlib.AbstractAsyncContextManager[list[Publish]]]:
    """Callers that POST, each on a connection of its own that stays open."""

    @contextlib.asynccontextmanager
    async def publishing(callers: int) -> AsyncIterator[list[Publish]]:
        streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(callers)]

        def publisher(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Publish:
            async def publish() -> None:
                body = json.dumps(_payload()).encode()
                writer.write(b"POST /pub HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                if b"content-length: " in head:
                    await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))

            return publish

        try:
            yield [publisher(*stream) for stream in streams]
        finally:
            for _, writer in streams:
                writer.close()

    return publishing


# The last is so slow that a tenth of the load says as much.
CONTENDERS = {"Tape": (_tape, 1.0), "nginx nchan": (_nchan, 1.0), "naive Starlette": (_naive, 0.1)}


# ── Tape alone ───────────────────────────────────────────────────────────────────────────────────


def _alone(options: Options) -> Table:
    lab = options.lab
    rows = []
    with TapeServer(lab.fresh_store("sqlite"), *FLAGS) as server:
        contender = _tape_contender(server)
        for readers in options.scaled((1, 100), (1,)):
            options.report(f"{TITLE}: {RATE} events/s, {readers} readers")
            seen = _steady(lab, contender, readers, RATE * options.scaled(10, 1))
            figures = f"p50 {milliseconds(seen.p50_ms)} ms, p99 {milliseconds(seen.p99_ms)} ms"
            rows.append([f"publish to receipt at {RATE:,} events/s, {readers} readers", figures])
    options.report(f"{TITLE}: replay")
    events = options.scaled(1_000_000, 5_000)
    rows.append([f"replay of {events:,} events to one reader", f"{count(_replay(lab, events))} events/s"])
    options.report(f"{TITLE}: what a reader costs")
    rows += _costs(options)
    notes = [
        "latency from just before the append to the frame at the reader, the append made durable in between",
        "a past connection is one reader that came and went; the append is by one caller, one after the other",
    ]
    return Table(f"{TITLE}, Tape alone on SQLite", ["what", "figure"], rows, notes)


def _steady(lab: Lab, contender: Contender, readers: int, events: int) -> Received:
    async def publish_steadily() -> None:
        async with contender.publishing(1) as (publish,), asyncio.TaskGroup() as group:
            began = time.monotonic()
            for number in range(events):
                await asyncio.sleep(max(began + number / RATE - time.monotonic(), 0))
                group.create_task(_await(publish))

    with reading(lab, contender.port, contender.path, readers, events) as connected:
        lab.run(publish_steadily())
        return connected.received()


async def _await(publish: Publish) -> None:
    await publish()


def _replay(lab: Lab, events: int) -> float:
    store = lab.fresh_store("sqlite")
    lab.run(_fill(store, events))
    with TapeServer(store) as server:
        while server.counters()["tape_commits_total"] < events // 20_000:  # until what is new was counted
            time.sleep(0.2)
        return replay_events(lab, server, events)


def replay_events(lab: Lab, server: TapeServer, events: int, after: int = 0) -> float:
    """Events a second from a cursor to one reader; each has a `sent_ns`, by which the reader counts."""
    began = time.monotonic_ns()
    with reading(lab, _port(server), f"/v1/events?resume_seq={after}", 1, events) as reader:
        received = reader.received()
    if received.events < events:
        raise RuntimeError(f"{received.events} of {events} events were replayed")
    return received.events / ((received.last_ns - began) / 1e9)


async def _fill(store: str, events: int) -> None:
    async with open_database(store) as database:
        journal = Journal(database)
        for start in range(0, events, 512):
            drafts = [
                Draft(subject="/tape/load/made", payload_json=json.dumps(_payload()))
                for _ in range(min(512, events - start))
            ]
            await journal.append(drafts)


def _costs(options: Options) -> list[list[str]]:
    readers, past = options.scaled((1_000, 10_000), (50, 100))
    with TapeServer(options.lab.fresh_store("sqlite"), *FLAGS) as server:
        contender = _tape_contender(server)
        before_ms = options.lab.run(_append_ms(contender))
        with reading(options.lab, contender.port, contender.path, 10, 0):
            pass
        before = server.resident_bytes
        with reading(options.lab, contender.port, contender.path, readers, 1):
            per_reader = (server.resident_bytes - before) / readers
        options.lab.run(_come_and_go(contender.port, past))
        after_ms = options.lab.run(_append_ms(contender))
    return [
        [f"memory of an idle reader, of {readers:,}", f"{per_reader / 1024:.1f} KiB"],
        ["one append, before any connection", f"p50 {milliseconds(before_ms)} ms"],
        [f"one append, after {past:,} past connections", f"p50 {milliseconds(after_ms)} ms"],
    ]


async def _append_ms(contender: Contender) -> float:
    async with contender.publishing(1) as (publish,):
        times = []
        for _ in range(500):
            began = time.perf_counter()
            await publish()
            times.append((time.perf_counter() - began) * 1e3)
        return statistics.median(times)


async def _come_and_go(port: int, connections: int) -> None:
    left = iter(range(connections))

    async def come_and_go() -> None:
        for _ in left:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET {TAPE_PATH} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            await reader.readuntil(b"retry: 3000")
            writer.close()

    await asyncio.gather(*(come_and_go() for _ in range(16)))
