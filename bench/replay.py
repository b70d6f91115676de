"""How fast a reader that begins with the oldest entry gets to the newest."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from bench.lab import Lab, TapeServer, cpu_seconds
from bench.load import payload_text
from bench.options import NAMES, Options
from bench.peers.durable_streams import durable_streams, path_of
from bench.peers.servers import NotInstalled, free_port, running
from bench.raw import connect
from bench.readers import build, reading
from bench.table import NOTHING, Table, count, ratio
from tape.client import AsyncTapeClient, rpcs
from tape.proto import tape_pb2 as pb

TITLE = "Replay: from the oldest entry to the newest"

ENTRIES, QUICK_ENTRIES = 1_000_000, 5_000
# Each is a gRPC message of its own there.
ONE_BY_ONE, QUICK_ONE_BY_ONE = 100_000, 1_000
# Messages of Durable Streams: many in a POST are stored as one, and can only be read together.
EACH_POST = 512
POSTED_ALONE, QUICK_POSTED_ALONE = 20_000, 200
AIMS = {"sqlite": "> 200,000/s", "postgres": "> 100,000/s"}
# What each entry of the load has once.
TOKEN = '"order":"order-'

BARE_GRPC = "bare gRPC: messages made beforehand, one an entry"
CATCH_UP = f"Durable Streams: catch-up, {EACH_POST} messages a POST"

Reader = Callable[[AsyncTapeClient, int], Awaitable[int]]


class Measured(NamedTuple):
    """Entries a second, and the processor time of the server for each in µs; 0 if there is no server."""

    rate: float
    cpu_us: float = 0.0


@dataclass(frozen=True)
class Way:
    """A way to read so many entries, the peer that it is compared with, and the aim."""

    name: str
    entries: int
    measure: Callable[[int], Measured]
    peer: str = ""
    aim: str = NOTHING


def run(options: Options) -> list[Table]:
    """Every way to read, beside peers and beside a SELECT of the same rows, in turns."""
    rounds = options.scaled(3, 1)
    build(options.lab)
    with contextlib.ExitStack() as stack:
        ways = [way for kind in options.stores for way in _tape(options, stack, kind)]
        missing: dict[str, str] = {}
        for name, open_ in {BARE_GRPC: _bare_grpc, CATCH_UP: _durable_streams}.items():
            options.report(f"{TITLE}: {name}")
            try:
                ways += stack.enter_context(open_(options))
            except NotInstalled as error:
                missing[name] = str(error)
        found: dict[str, list[Measured]] = {way.name: [] for way in ways}
        for number in range(1, rounds + 1):
            for way in ways:
                options.report(f"{TITLE}: round {number}, {way.name}")
                found[way.name].append(way.measure(way.entries))
    rates = {name: median(each.rate for each in measured) for name, measured in found.items()}
    costs = {name: median(each.cpu_us for each in measured) for name, measured in found.items()}
    rows = [
        [
            way.name,
            count(way.entries),
            count(rates[way.name]),
            f"{costs[way.name]:.2f}" if costs[way.name] else NOTHING,
            ratio(rates[way.name], rates.get(_select_of(way.name))) if way.peer else NOTHING,
            ratio(rates[way.name], rates.get(way.peer)),
            way.aim,
        ]
        for way in ways
    ]
    rows += [[f"{name} ({why})", *[NOTHING] * 6] for name, why in missing.items()]
    columns = ["", "entries", "entries/s", "server µs an entry", "÷ SELECT", "÷ peer", "aim"]
    notes = [
        f"one reader in one process, the server in another; in turns, medians of {rounds} rounds",
        "Tape checks each entry, and sends it with its number, time, subject and run",
        "SSE and Durable Streams are read by one C program of ours, the others by the SDK",
        "Durable Streams: its reference server, streams in files, each append on disk (fdatasync) before its answer",
        "Durable Streams checks nothing and sends payloads alone; of many in a POST it reads all or none",
        f"the peer of one by one is {BARE_GRPC}; that of the others is {CATCH_UP}",
    ]
    return [Table(TITLE, columns, rows, notes)]


# ── Tape ─────────────────────────────────────────────────────────────────────────────────────────


def _tape(options: Options, stack: contextlib.ExitStack, kind: str) -> Iterator[Way]:
    entries = options.scaled(ENTRIES, QUICK_ENTRIES)
    one_by_one = options.scaled(ONE_BY_ONE, QUICK_ONE_BY_ONE)
    store, lab = NAMES[kind], options.lab
    options.report(f"{TITLE}: filling {store} with {entries:,} entries")
    url = lab.filled_store(kind, entries)
    server = stack.enter_context(TapeServer(url))

    def by_sdk(read: Reader) -> Callable[[int], Measured]:
        return lambda wanted: _read_grpc(lab, server.url, server.pid, read, wanted)

    def by_http(wanted: int) -> Measured:
        port = int(server.http_url.rpartition(":")[2])
        return _read_http(lab, port, server.pid, "/v1/events?resume_seq=0", wanted)

    yield Way(f"{store}: SubscribeBySubject, one by one", one_by_one, by_sdk(_one_by_one), BARE_GRPC)
    yield Way(f"{store}: subscribe_by_subject of the SDK", entries, by_sdk(_by_subject), CATCH_UP)
    yield Way(f"{store}: Follow, in the batches that travel", entries, by_sdk(read_batches), CATCH_UP, AIMS[kind])
    yield Way(f"{store}: Follow, as Entry objects", entries, by_sdk(_as_entries), CATCH_UP)
    yield Way(f"{store}: SSE", entries, by_http, CATCH_UP, AIMS[kind])
    yield Way(_select_of(store), entries, lambda wanted: _select(url))


def _select_of(name: str) -> str:
    return f"{name.partition(':')[0]}: SELECT through the driver"


def _read_grpc(lab: Lab, url: str, pid: int, read: Reader, wanted: int) -> Measured:
    before = cpu_seconds(pid)
    rate = lab.run(_measure(url, read, wanted))
    return Measured(rate, 1e6 * (cpu_seconds(pid) - before) / wanted)


async def _measure(url: str, read: Reader, wanted: int) -> float:
    async with AsyncTapeClient(url) as client:
        await client.head()
        began = time.perf_counter()
        got = await read(client, wanted)
        return got / (time.perf_counter() - began)


async def _one_by_one(client: AsyncTapeClient, wanted: int) -> int:
    request = pb.SubscribeBySubjectRequest(subject_pattern="/tape/order/**")
    return await _count(client._channel.stream(rpcs.SUBSCRIBE_BY_SUBJECT, request), wanted)


async def _by_subject(client: AsyncTapeClient, wanted: int) -> int:
    return await _count(client.subscribe_by_subject(subject_pattern="/tape/order/**"), wanted)


async def _as_entries(client: AsyncTapeClient, wanted: int) -> int:
    return await _count(client.follow("/tape/order/**"), wanted)


async def read_batches(client: AsyncTapeClient, wanted: int, after: int = 0) -> int:
    """Follow from a cursor until at least so many entries have arrived; their number."""
    got = 0
    async for batch in client.follow_batches("/tape/order/**", from_global_seq=after):
        got += len(batch.entries)
        if got >= wanted:
            break
    return got


async def _count(entries: AsyncIterator[object], wanted: int) -> int:
    got = 0
    async for _ in entries:
        got += 1
        if got == wanted:
            break
    return got


def _select(store: str) -> Measured:
    driver = connect(store)
    try:
        began = time.perf_counter()
        entries = sum(1 for _ in driver.select(0))
        return Measured(entries / (time.perf_counter() - began))
    finally:
        driver.close()


def _read_http(lab: Lab, port: int, pid: int, path: str, wanted: int) -> Measured:
    before, began = cpu_seconds(pid), time.monotonic_ns()
    with reading(lab, port, path, 1, wanted, TOKEN) as readers:
        received = readers.received()
    if received.events != wanted:
        raise RuntimeError(f"{received.events} of {wanted} entries were read from {path}")
    cpu_us = 1e6 * (cpu_seconds(pid) - before) / wanted
    return Measured(wanted / ((received.last_ns - began) / 1e9), cpu_us)


# ── peers ────────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _bare_grpc(options: Options) -> Iterator[list[Way]]:
    entries, port = options.scaled(ONE_BY_ONE, QUICK_ONE_BY_ONE), free_port()
    command = [sys.executable, "-m", "bench.peers.bare_grpc", str(port), str(entries)]
    with running(command, sys.executable, port) as pid:
        url = f"tape://127.0.0.1:{port}"
        yield [Way(BARE_GRPC, entries, lambda wanted: _read_grpc(options.lab, url, pid, _one_by_one, wanted))]


@contextlib.contextmanager
def _durable_streams(options: Options) -> Iterator[list[Way]]:
    entries = options.scaled(ENTRIES, QUICK_ENTRIES)
    alone = options.scaled(POSTED_ALONE, QUICK_POSTED_ALONE)
    with durable_streams(options.lab.fresh_folder()) as server:
        messages = [payload_text(number) for number in range(entries)]
        server.fill("many", messages, EACH_POST)
        server.fill("alone", messages[:alone], 1)

        def way(name: str, stream: str, wanted: int, live: str = "") -> Way:
            path = f"{path_of(stream)}?offset=-1{live}"
            return Way(name, wanted, lambda wanted: _read_http(options.lab, server.port, server.pid, path, wanted))

        yield [
            way(CATCH_UP, "many", entries),
            way(f"Durable Streams: SSE, {EACH_POST} messages a POST", "many", entries, "&live=sse"),
            way("Durable Streams: catch-up, one message a POST", "alone", alone),
            way("Durable Streams: SSE, one message a POST", "alone", alone, "&live=sse"),
        ]
