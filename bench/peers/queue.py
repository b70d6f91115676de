"""What the peers' queues have in common: `DSN JOBS PROBES` from the command line, the outcome as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from abc import ABC, abstractmethod

from bench.load import payload_text, percentile


class Queue(ABC):
    """A queue in a PostgreSQL database, and a worker of it in this process."""

    def __init__(self) -> None:
        self.done = 0
        self.arrived: asyncio.Event = asyncio.Event()
        self.goal = 0

    def handle(self) -> None:
        """What the handler of a job does: nothing, but count."""
        self.done += 1
        if self.done >= self.goal:
            self.arrived.set()

    @abstractmethod
    async def open(self, dsn: str) -> None:
        """Make the tables."""

    @abstractmethod
    async def enqueue(self, payloads: list[str]) -> None:
        """Put jobs into the queue, the fastest way there is."""

    @abstractmethod
    async def work(self) -> None:
        """Work until cancelled."""

    async def until(self, goal: int) -> None:
        """Wait until so many jobs were handled."""
        self.goal = goal
        self.arrived.clear()
        if self.done < goal:
            await self.arrived.wait()


async def measure(queue: Queue) -> None:
    """Fill, drain, then one job at a time; print what came out."""
    dsn, jobs, probes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    await queue.open(dsn)
    began = time.perf_counter()
    for start in range(0, jobs, 1_000):
        await queue.enqueue([payload_text(number) for number in range(start, min(start + 1_000, jobs))])
    enqueued = time.perf_counter()
    working = asyncio.create_task(queue.work())
    await queue.until(jobs)
    drained = time.perf_counter()
    waits = []
    for number in range(probes):
        asked = time.perf_counter()
        sending = asyncio.create_task(queue.enqueue([payload_text(number)]))
        await queue.until(jobs + number + 1)
        waits.append((time.perf_counter() - asked) * 1_000)
        await sending
        await asyncio.sleep(0.005)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    waits.sort()
    print(
        json.dumps(
            {
                "enqueue": jobs / (enqueued - began),
                "drain": jobs / (drained - enqueued),
                "p50_ms": percentile(waits, 0.5),
                "p99_ms": percentile(waits, 0.99),
            }
        )
    )
