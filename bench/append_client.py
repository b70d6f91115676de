"""Appends to a Tape server with many callers: `PORT ENTRIES SECONDS WARM_UP_SECONDS [CALLERS]`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from bench.load import event
from bench.peers.client import run
from tape.client import AsyncTapeClient


@asynccontextmanager
async def appender(port: int) -> AsyncIterator[Callable[[int], Awaitable[object]]]:
    """One client for all callers of the process."""
    async with AsyncTapeClient(f"tape://127.0.0.1:{port}") as client:

        async def append(number: int) -> object:
            subject, run_id, payload = event(number)
            return await client.append(subject, payload, run_id=run_id)

        yield append


if __name__ == "__main__":
    run(appender)
