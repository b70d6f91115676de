"""Batches appends of concurrent callers and retries them with the same request id."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Sequence

from tape.base.retry import RetryPolicy, is_retryable, retry_async
from tape.client.call_batcher import CallBatcher, PendingCall
from tape.errors import InvalidInput, TapeError
from tape.model.entry import Draft

MAX_DRAFTS = 512
MAX_BYTES = 2 << 20
RETRY = RetryPolicy(max_attempts=4, initial_interval_s=0.05, jitter=0.5)
# Statuses of errors that are about one draft.
REJECTED = ("PERMISSION_DENIED", "ALREADY_EXISTS")

Send = Callable[[Sequence[Draft], str, bool], Awaitable[list[int]]]


class AppendBatcher:
    """Sends appends in batches; the request id makes a retry append nothing twice."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._batcher: CallBatcher[Sequence[Draft], list[int]] = CallBatcher(
            self._send_batch, max_count=MAX_DRAFTS, max_bytes=MAX_BYTES
        )

    async def append(self, drafts: Sequence[Draft]) -> list[int]:
        """Append drafts, all or none; returns their `global_seq`s once they are durable."""
        size = sum(_bytes_of(draft.payload_json) for draft in drafts)
        return await self._batcher.send(drafts, len(drafts), size)

    async def flush(self) -> None:
        """Wait until every append has its answer."""
        await self._batcher.flush()

    async def _send_batch(self, calls: Sequence[PendingCall[Sequence[Draft], list[int]]]) -> None:
        try:
            # Ids begin with the time, so that those of one day lie side by side in the server's index.
            request_id = f"{time.time_ns():016x}-{secrets.token_hex(8)}"
            seqs = await self.send_with_retry([draft for call in calls for draft in call.item], request_id)
        except Exception as error:
            if len(calls) > 1 and is_rejection(error):
                # A rejected batch wrote nothing: send each call alone, so that one bad draft fails only its own call.
                # After any other error the batch may have been written and must not get a new id.
                for call in calls:
                    await self._send_batch([call])
                return
            for call in calls:
                call.fail(error)
            return
        start = 0
        for call in calls:
            call.answer(seqs[start : start + call.count])
            start += call.count

    async def send_with_retry(
        self, drafts: Sequence[Draft], request_id: str, first_write_wins: bool = False
    ) -> list[int]:
        """Send one request, up to 4 times while the error is retryable."""
        return await retry_async(
            lambda: self._send(drafts, request_id, first_write_wins), RETRY, can_retry=is_retryable
        )


def is_rejection(error: Exception) -> bool:
    """Whether nothing was written, because of what one draft says: it is invalid, not permitted, or exists already."""
    return isinstance(error, InvalidInput) or (isinstance(error, TapeError) and error.status in REJECTED)


def _bytes_of(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
