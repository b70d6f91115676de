"""The cost of store-and-forward: writing to the spool, draining it, and an idle spool."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import uvloop
from tests.broker_services import NatsServer
from tests.objects import S3Server

from bench.options import Options
from bench.table import NOTHING, Table, count, ratio
from tape.base.clock import now_ms
from tape.model.dispatch_result import RunDispatchResult
from tape.subscriptions.dispatch.forwarder import Forwarder
from tape.subscriptions.document.validator import parse_subscription
from tape.subscriptions.events import SubscriptionEvent, SubscriptionRef
from tape.subscriptions.message import receive
from tape.subscriptions.routing import Plan
from tape.subscriptions.spool.backend import Area, SpoolBackend
from tape.subscriptions.spool.disk import DiskBackend
from tape.subscriptions.spool.drain import drain
from tape.subscriptions.spool.item import SpoolItem
from tape.subscriptions.spool.nats import NatsBackend
from tape.subscriptions.spool.objects import BucketBackend
from tape.subscriptions.spool.spool import Arrival, Lane, Spool, SpoolRules

TITLE = "Spool: messages that wait for their downstream"

REF = SubscriptionRef("bench", "subscriptions/bench", 1)
TAKEN_AT_ONCE = 100
LANES = 1_000
SPEC = """
apiVersion: tape/v1
kind: Subscription
metadata: {path: subscriptions/bench}
spec:
  source: nats
  mode: pull
  url: nats://127.0.0.1:4222
  stream: READINGS
  consumer: bench
  dispatch: {playbook: domain/reading}
  spool: {mode: buffer_and_ack, backend: memory}
"""
BODY = {"device": "d-17", "reading": 21.5, "text": "x" * 200}


def run(options: Options) -> list[Table]:
    """Three tables: by backend, by ordering, and idle."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return [
            runner.run(_backends(options)),
            runner.run(_orders(options)),
            runner.run(_idle(options)),
        ]


async def _emit(events: Sequence[SubscriptionEvent]) -> None:
    """Discard events: the speed of the journal is not measured here."""


def _arrivals(number: int) -> list[Arrival]:
    return [
        Arrival(
            f"m{n}", {"id": f"m{n}", "data": BODY}, {"playbook": "p"}, "default", "circuit_open", None, f"{n % LANES}"
        )
        for n in range(number)
    ]


def _spool(backend: SpoolBackend, **rules: Any) -> Spool:
    return Spool(REF, "nats", backend, SpoolRules(max_bytes=None, **rules), emit=_emit, now_ms=now_ms)


class Receiver:
    """Accepts everything, and counts how often it was asked."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, items: list[SpoolItem], lanes: Sequence[Lane]) -> list[RunDispatchResult]:
        self.calls += 1
        return [RunDispatchResult("started", 1)] * len(items)


async def _rate(number: int, work: Callable[..., Awaitable[Any]], *arguments: Any) -> float:
    start = time.perf_counter()
    await work(*arguments)
    return number / (time.perf_counter() - start)


async def _fill(spool: Spool, arrivals: list[Arrival]) -> None:
    for start in range(0, len(arrivals), TAKEN_AT_ONCE):
        await spool.append(arrivals[start : start + TAKEN_AT_ONCE])


async def _bare_write(backend: SpoolBackend, objects: list[tuple[str, bytes]]) -> None:
    """The same objects, as many at once, by the client alone."""
    for start in range(0, len(objects), TAKEN_AT_ONCE):
        await backend.put(Area.CONTROL, objects[start : start + TAKEN_AT_ONCE])


async def _bare_read(backend: SpoolBackend, objects: list[tuple[str, bytes]]) -> None:
    for start in range(0, len(objects), 250):
        some = [key for key, _ in objects[start : start + 250]]
        await backend.get_many(Area.CONTROL, some)
        await backend.delete(Area.CONTROL, some)


@asynccontextmanager
async def _opened(name: str, options: Options) -> AsyncIterator[SpoolBackend]:
    async with AsyncExitStack() as stack:
        backend: SpoolBackend
        match name:
            case "folder, synced":
                backend = DiskBackend(options.lab.fresh_folder())
            case "memory":
                from obstore.store import MemoryStore

                backend = BucketBackend(MemoryStore(), "bench", "memory")
            case "S3 (SeaweedFS)":
                server = stack.enter_context(S3Server())
                backend = BucketBackend(server.store("spool"), "bench", "s3://spool")
            case _:
                broker = stack.enter_context(NatsServer())
                backend = NatsBackend("bench", servers=f"nats://{broker.address}")
        yield backend
        await backend.close()


async def _backends(options: Options) -> Table:
    rows = []
    for name in ("folder, synced", "memory", "S3 (SeaweedFS)", "NATS object store"):
        options.report(f"{TITLE}: {name}")
        number = options.scaled(20_000 if name in ("folder, synced", "memory") else 5_000, 200)
        arrivals = _arrivals(number)
        async with _opened(name, options) as backend:
            spool = _spool(backend, ordering="none")
            written = await _rate(number, _fill, spool, arrivals)
            drained = await _rate(number, drain, spool, Receiver())
            item = SpoolItem(
                subscription=REF.path, source="nats", message_id="m1", dedup_key="m1", recv_seq=1,
                downstream="default", sha256="0" * 64, attempts=0, spooled_at_ms=now_ms(), reason="circuit_open",
                message=arrivals[0].message, plan=arrivals[0].plan,
            )  # fmt: skip
            objects = [(f"{n:020}-m{n}", item.encode()) for n in range(number)]
            bare_write = await _rate(number, _bare_write, backend, objects)
            bare_read = await _rate(number, _bare_read, backend, objects)
        rows.append(
            [
                name,
                count(written),
                count(bare_write),
                ratio(written, bare_write),
                count(drained),
                count(bare_read),
                ratio(drained, bare_read),
            ]
        )
    return Table(
        "Spool: messages per second, by backend",
        ["backend", "appended", "bare writes", "of bare", "drained", "bare reads", "of bare"],
        rows,
        [
            f"Messages of {len(str(BODY))} bytes, {TAKEN_AT_ONCE} taken at once; bare is the same client writing, and"
            " reading and deleting, objects of the same size, as many at once.",
            "A drain here ends in a function that accepts everything, without order.",
        ],
    )


async def _orders(options: Options) -> Table:
    number = options.scaled(100_000, 300)
    rows = []
    for ordering in ("none", "per_key", "global"):
        options.report(f"{TITLE}: {number:,} in order {ordering}")
        async with _opened("folder, synced", options) as backend:
            spool = _spool(backend, ordering=ordering)
            await _fill(spool, _arrivals(number))
            receiver = Receiver()
            rate = await _rate(number, drain, spool, receiver)
        rows.append([ordering, count(rate), count(number / receiver.calls)])
    return Table(
        f"Spool: draining {number:,} messages",
        ["ordering", "messages/s", "messages a call"],
        rows,
        [f"`per_key` with {LANES:,} lanes. A call takes up to 500, of a lane as many as its share, in their order."],
    )


async def _idle(options: Options) -> Table:
    number = options.scaled(50_000, 500)
    subscription = parse_subscription(SPEC)
    envelope = receive("nats", "m1", b'{"v": 1}')
    plan = Plan(subscription=REF.path, source="nats", message_id="m1", playbook="p", payload={"message": {}})

    async def dispatch(plans: Sequence[Plan]) -> list[RunDispatchResult]:
        return [RunDispatchResult("started", 1)] * len(plans)

    async def bare() -> None:
        for _ in range(0, number, TAKEN_AT_ONCE):
            await dispatch([plan] * TAKEN_AT_ONCE)

    async with _opened("memory", options) as backend:
        forwarder = Forwarder(subscription, REF, dispatch, spool=_spool(backend), emit=_emit)

        async def forwarded() -> None:
            for _ in range(0, number, TAKEN_AT_ONCE):
                await forwarder.forward([(envelope, plan)] * TAKEN_AT_ONCE)

        rate = await _rate(number, forwarded)
    return Table(
        "Spool: enabled, and nothing is wrong",
        ["what", "messages/s", "microseconds a message"],
        [
            ["a dispatch that does nothing", count(await _rate(number, bare)), NOTHING],
            ["the same behind circuit and spool", count(rate), f"{1e6 / rate:.2f}"],
        ],
    )
