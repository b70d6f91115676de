"""Publishes to a NATS stream with many callers; runs in the peers' environment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import nats
from nats.js.api import StorageType, StreamConfig

from bench.load import PREPARED, SUBJECTS, payload_texts
from bench.peers.client import run


@asynccontextmanager
async def appender(port: int) -> AsyncIterator[Callable[[int], Awaitable[object]]]:
    """NATS with a stream in files."""
    payloads = [text.encode() for text in payload_texts()]
    connection = await nats.connect(f"nats://127.0.0.1:{port}")
    try:
        stream = connection.jetstream(timeout=30)
        await stream.add_stream(StreamConfig(name="orders", subjects=["order.>"], storage=StorageType.FILE))

        async def append(number: int) -> object:
            return await stream.publish(f"order.created.{number % SUBJECTS:04d}", payloads[number % PREPARED])

        yield append
    finally:
        await connection.close()


if __name__ == "__main__":
    run(appender)
