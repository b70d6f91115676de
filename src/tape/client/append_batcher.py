"""Appends of many callers in few messages, each sent until it is surely there."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence

from tape.client.call_batcher import Caller, Gathering
from tape.errors import InvalidInput, TapeError
from tape.model.entry import Draft

MAX_DRAFTS = 512
MAX_BYTES = 2 << 20
ATTEMPTS = 4
FIRST_RETRY_S = 0.05

Send = Callable[[Sequence[Draft], str], Awaitable[list[int]]]


class Batcher:
    """Gathers appends and sends them; a request id makes a retry harmless."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._gathering: Gathering[Sequence[Draft], list[int]] = Gathering(
            self._deliver, max_count=MAX_DRAFTS, max_bytes=MAX_BYTES
        )

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Append drafts, all or none; their `global_seq`s once they are durable."""
        size = sum(len(draft.payload_json) for draft in drafts)
        return await self._gathering.send(drafts, len(drafts), size)

    async def flush(self) -> None:
        """Wait until nothing is on its way."""
        await self._gathering.flush()

    async def _deliver(self, callers: Sequence[Caller[Sequence[Draft], list[int]]]) -> None:
        try:
            # Beginning with the time, ids of one day lie side by side in the server's index.
            request_id = f"{time.time_ns():016x}-{secrets.token_hex(8)}"
            seqs = await self.send_surely([draft for caller in callers for draft in caller.item], request_id)
        except Exception as error:
            if len(callers) > 1 and isinstance(error, InvalidInput):
                # Refused, so nothing was written: one bad draft must not fail those it travelled with.
                # After any other error the request may have been carried out and must not get a new id.
                for caller in callers:
                    await self._deliver([caller])
                return
            for caller in callers:
                caller.fail(error)
            return
        start = 0
        for caller in callers:
            caller.answer(seqs[start : start + caller.count])
            start += caller.count

    async def send_surely(self, drafts: Sequence[Draft], request_id: str) -> list[int]:
        """Send one request, and again after a failure that may pass."""
        pause = FIRST_RETRY_S
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await self._send(drafts, request_id)
            except TapeError as error:
                if not error.retryable or attempt == ATTEMPTS:
                    raise
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311
            pause *= 2
        raise AssertionError("unreachable")
