"""`python -m bench.flood KIND URL TOKEN`: a caller that takes as much of a server as it gets, until it is stopped."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import uvloop

from bench.load import CALLERS, event
from tape.client import rpcs
from tape.client.channel import OPTIONS, GrpcChannel, target_of
from tape.client.credentials import Credentials
from tape.errors import TenantLimitReached
from tape.proto import tape_pb2 as pb

# Seconds that a refused caller waits. One that repeats its call at once is a flood of refusals.
REFUSED_PAUSE_S = 0.05
BATCH_ENTRIES = 1_000
LARGE_PAYLOAD_BYTES = 1_000_000
LARGE_CALLERS = 8
DOCUMENT_BYTES = 250_000
DOCUMENT_CALLERS = 4
DOCUMENT = """\
apiVersion: tape/v1
kind: Playbook
metadata: {path: large}
workflow:
  - step: show
    tool:
      kind: value
      value:
"""
HOSTILE_KEYS = 10_000
HOSTILE_PREDICATE = "payload.m.map(k, payload.m) == []"
HOSTILE_PAUSE_S = 0.1

_REFUSED = grpc.StatusCode.RESOURCE_EXHAUSTED

Call = Callable[[int], Awaitable[object]]


class Flood:
    """Calls of one kind on one connection, as many as the server answers."""

    def __init__(self, url: str, token: str) -> None:
        self._channel = grpc.aio.insecure_channel(target_of(url), options=OPTIONS)
        self._metadata = [("authorization", f"Bearer {token}")]
        self._frames = GrpcChannel(url, credentials=Credentials(id_token=token))
        self.answered = 0
        self.refused = 0

    async def run(self, kind: str) -> None:
        """Make calls of the kind without end."""
        await getattr(self, f"_{kind}")()

    async def _entries(self) -> None:
        requests = [_append(number, 1) for number in range(1_000)]
        await self._repeat(CALLERS, lambda number: self._unary("Append", requests[number % 1_000]))

    async def _framed(self) -> None:
        requests = [pb.AppendRequest.FromString(_append(number, 1)) for number in range(1_000)]
        while not self._frames.is_upgraded:
            await self._frames.call(rpcs.GET_HEAD, pb.GetHeadRequest())

        async def append(number: int) -> None:
            await self._frames.call(rpcs.APPEND, requests[number % 1_000])
            self.answered += 1

        await self._repeat(CALLERS, append)

    async def _batches(self) -> None:
        requests = [_append(number * BATCH_ENTRIES, BATCH_ENTRIES) for number in range(4)]
        await self._repeat(CALLERS, lambda number: self._unary("Append", requests[number % 4]))

    async def _streams(self) -> None:
        request = _append(0, 1)

        async def requests() -> AsyncIterator[bytes]:
            while True:
                yield request

        async def append(number: int) -> None:
            call = self._channel.stream_stream("/tape.v1.Tape/AppendStream")
            async for reply in call(requests(), metadata=self._metadata):
                if pb.AppendReply.FromString(reply).error_code:
                    self.refused += 1
                else:
                    self.answered += 1

        await self._repeat(CALLERS, append)

    async def _payloads(self) -> None:
        text = json.dumps({"text": "Lorem ipsum dolor sit amet. " * (LARGE_PAYLOAD_BYTES // 28)})
        request = pb.AppendRequest(drafts=[pb.Draft(subject="/tape/report/written", payload_json=text)])
        data = request.SerializeToString()
        await self._repeat(LARGE_CALLERS, lambda number: self._unary("Append", data))

    async def _documents(self) -> None:
        lines = "".join(f"        key_{number}: [1, 2, {{a: b}}]\n" for number in range(DOCUMENT_BYTES // 34))
        content = f"{DOCUMENT}{lines}"
        data = pb.RegisterResourceRequest(content=content).SerializeToString()
        await self._repeat(DOCUMENT_CALLERS, lambda number: self._unary("RegisterResource", data))

    async def _predicate(self) -> None:
        await self._predicates(1)

    async def _predicates(self, follows: int = 20) -> None:
        payload = json.dumps({"m": {f"k{number}": number for number in range(HOSTILE_KEYS)}})
        entry = pb.AppendRequest(drafts=[pb.Draft(subject="/tape/hostile/entry", payload_json=payload)])
        wanted = pb.FollowRequest(subject_pattern="/tape/hostile/>", predicate_cel=HOSTILE_PREDICATE)

        async def follow(number: int) -> None:
            call = self._channel.unary_stream("/tape.v1.Tape/Follow")
            async for _ in call(wanted.SerializeToString(), metadata=self._metadata):
                self.answered += 1

        async def append(number: int) -> None:
            await self._unary("Append", entry.SerializeToString())
            await asyncio.sleep(HOSTILE_PAUSE_S)

        await asyncio.gather(self._repeat(follows, follow), self._repeat(1, append))

    async def _unary(self, method: str, request: bytes) -> None:
        await self._channel.unary_unary(f"/tape.v1.Tape/{method}")(request, metadata=self._metadata)
        self.answered += 1

    async def _repeat(self, callers: int, call: Call) -> None:
        async def repeat(first: int) -> None:
            number = first
            while True:
                try:
                    await call(number)
                except (grpc.aio.AioRpcError, TenantLimitReached) as error:
                    if isinstance(error, grpc.aio.AioRpcError) and error.code() is not _REFUSED:
                        raise
                    self.refused += 1
                    await asyncio.sleep(REFUSED_PAUSE_S)
                number += callers

        await asyncio.gather(*(repeat(first) for first in range(callers)))


def _append(first: int, entries: int) -> bytes:
    drafts = []
    for number in range(first, first + entries):
        subject, run_id, payload = event(number)
        drafts.append(pb.Draft(subject=subject, run_id=f"flood-{run_id}", payload_json=json.dumps(payload)))
    return pb.AppendRequest(drafts=drafts).SerializeToString()


async def main(kind: str, url: str, token: str) -> None:
    """Run until standard input ends, then print how many calls were answered and refused, in how many seconds."""
    flood = Flood(url, token)
    began = time.perf_counter()
    running = asyncio.create_task(flood.run(kind))
    stopped = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    print("running", flush=True)
    await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        running.result()
    print(flood.answered, flood.refused, time.perf_counter() - began, flush=True)
    running.cancel()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:4]))
