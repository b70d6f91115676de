"""What the peers' clients have in common: the load from the command line, the outcome as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict

import uvloop

from bench.load import CALLERS, Bounds, run_callers

Appender = Callable[[int], AbstractAsyncContextManager[Callable[[int], Awaitable[object]]]]


def run(appender: Appender) -> None:
    """`PORT ENTRIES SECONDS WARM_UP_SECONDS [CALLERS]`: print the outcome of the load."""
    port, entries, seconds, warm_up = sys.argv[1:5]
    callers = int(sys.argv[5]) if len(sys.argv) > 5 else CALLERS

    async def measure() -> None:
        async with appender(int(port)) as append:
            await run_callers(append, callers, Bounds(int(entries), float(warm_up)))
            outcome = await run_callers(append, callers, Bounds(int(entries), float(seconds)))
        print(json.dumps(asdict(outcome)))

    uvloop.run(measure())
