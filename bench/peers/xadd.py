"""Appends to a Redis stream with many callers; runs in the peers' environment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from bench.load import CALLERS, PREPARED, SUBJECTS, payload_texts
from bench.peers.client import run


@asynccontextmanager
async def appender(port: int) -> AsyncIterator[Callable[[int], Awaitable[object]]]:
    """Redis with a connection for each caller."""
    texts = payload_texts()
    async with Redis(host="127.0.0.1", port=port, max_connections=CALLERS) as redis:

        async def append(number: int) -> object:
            fields = {"subject": f"/tape/order/created/{number % SUBJECTS:04d}", "payload": texts[number % PREPARED]}
            return await redis.xadd("orders", fields)

        yield append


if __name__ == "__main__":
    run(appender)
