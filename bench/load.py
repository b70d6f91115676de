"""The load that Tape and its peers get alike: the same entries, the same number of callers.

Only the standard library is used here: the peers' clients run this in an environment of their own.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

CALLERS = 64
SUBJECTS = 1_000
PREPARED = 10_000


class Event(NamedTuple):
    """One entry of the load, before it is encoded for a system."""

    subject: str
    run_id: str
    payload: dict[str, Any]


@dataclass(frozen=True)
class Bounds:
    """A load ends after so many entries or so many seconds, whichever comes first."""

    entries: int
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """What callers saw: from just before the call to the durable answer."""

    entries: int
    seconds: float
    p50_ms: float
    p99_ms: float
    # Processor time of the server for an entry; 0 where it was not measured.
    cpu_us: float = 0.0

    @property
    def rate(self) -> float:
        """Entries a second."""
        return self.entries / self.seconds


def event(number: int) -> Event:
    """The entry of that number: a subject among a thousand, a run among 64, a payload of about 200 bytes."""
    return Event(
        f"/tape/order/created/{number % SUBJECTS:04d}",
        f"checkout-{number % CALLERS:02d}",
        {
            "order": f"order-{number:012d}",
            "customer": f"customer-{number % 977:06d}",
            "amount": {"value": number % 100_000, "currency": "EUR"},
            "lines": [{"sku": f"sku-{number % 313:05d}", "quantity": 1 + number % 5}],
            "note": "leave it with the neighbours if there is no answer",
        },
    )


def payload_text(number: int) -> str:
    """The payload of an entry as compact JSON."""
    return json.dumps(event(number).payload, separators=(",", ":"))


def payload_texts() -> list[str]:
    """Payloads made beforehand: what a peer takes as text costs its client nothing while the clock runs."""
    return [payload_text(number) for number in range(PREPARED)]


def percentile(sorted_values: Sequence[float], share: float) -> float:
    """The value that `share` of all values do not exceed."""
    return sorted_values[min(int(len(sorted_values) * share), len(sorted_values) - 1)]


def summarize(latencies_s: Sequence[float], seconds: float) -> Outcome:
    """The outcome of a load, from each call's latency."""
    ordered = sorted(latencies_s)
    return Outcome(len(ordered), seconds, percentile(ordered, 0.50) * 1e3, percentile(ordered, 0.99) * 1e3)


async def run_callers(append: Callable[[int], Awaitable[object]], callers: int, bounds: Bounds) -> Outcome:
    """Let callers append, each its next entry as soon as its last one is durable."""
    numbers = itertools.count()
    latencies: list[float] = []
    clock = time.perf_counter
    began = clock()
    deadline = began + bounds.seconds

    async def call() -> None:
        while (number := next(numbers)) < bounds.entries and (started := clock()) < deadline:
            await append(number)
            latencies.append(clock() - started)

    await asyncio.gather(*(call() for _ in range(callers)))
    return summarize(latencies, clock() - began)
