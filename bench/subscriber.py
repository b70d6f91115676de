"""Many subscribers in one process, each with a channel of its own: how late entries reach them.

`URL SUBSCRIBERS ENTRIES`: says `ready` when all have begun, and the outcome as JSON when all have everything.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from array import array
from dataclasses import asdict

import msgspec
import uvloop

from bench.load import summarize
from tape.client import AsyncTapeClient


class Sent(msgspec.Struct):
    """The part of the payload that says when the call to append began (CLOCK_MONOTONIC, shared by processes)."""

    sent_ns: int


async def subscribe(url: str, entries: int, latencies: array[float], ready: asyncio.Semaphore) -> None:
    """Take so many entries and note how late each was."""
    decode = msgspec.json.Decoder(Sent).decode
    got = 0
    async with AsyncTapeClient(url) as client:
        async for batch in client.follow_batches("/tape/order/**", from_global_seq=-1):
            now = time.monotonic_ns()
            if not got and not batch.entries:
                ready.release()  # the first message only says where the stream begins
            latencies.extend((now - decode(entry.payload_json).sent_ns) / 1e9 for entry in batch.entries)
            got += len(batch.entries)
            if got >= entries:
                return


async def run(url: str, subscribers: int, entries: int) -> None:
    """Let all subscribe, say so, and sum up what they saw."""
    latencies = array("d")
    ready = asyncio.Semaphore(0)
    async with asyncio.TaskGroup() as group:
        for _ in range(subscribers):
            group.create_task(subscribe(url, entries, latencies, ready))
        for _ in range(subscribers):
            await ready.acquire()
        print("ready", flush=True)
        began = time.perf_counter()
    print(json.dumps(asdict(summarize(latencies, time.perf_counter() - began))), flush=True)


if __name__ == "__main__":
    uvloop.run(run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
