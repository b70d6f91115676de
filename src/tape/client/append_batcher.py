"""Batches appends of concurrent callers and retries them with the same request id."""

from __future__ import annotations

import copy
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from typing import NamedTuple

from tape.base.retry import WHILE_UNAVAILABLE, is_retryable, retry_async
from tape.client.call_batcher import CallBatcher, PendingCall
from tape.errors import InvalidInput, TapeError
from tape.model.entry import Draft

MAX_DRAFTS = 512
MAX_BYTES = 2 << 20
# Appends are sent again for this long while the server cannot be reached or is overloaded.
TIMEOUT_S = 30.0
# Statuses of errors that are about one draft.
REJECTED = ("PERMISSION_DENIED", "ALREADY_EXISTS")

# Of an id that this module made: a caller may choose one with such an end.
_PART = re.compile(r"(?P<request_id>[0-9a-f]{16}-[0-9a-f]{16})#(?P<at>\d{1,9})/(?P<of>\d{1,9})")


class RequestRef(NamedTuple):
    """A request id; of one call in a batch also the number of drafts of the batch and where those of the call begin."""

    request_id: str
    of: int = 0
    at: int = 0

    @classmethod
    def parse(cls, text: str) -> RequestRef:
        """The inverse of `str`. An id that a caller chose is taken as it is."""
        found = _PART.fullmatch(text)
        return cls(found["request_id"], int(found["of"]), int(found["at"])) if found else cls(text)

    def __str__(self) -> str:
        return f"{self.request_id}#{self.at}/{self.of}" if self.of else self.request_id


Send = Callable[[Sequence[Draft], RequestRef, bool], Awaitable[list[int]]]


class AppendBatcher:
    """Sends appends in batches; the request id makes a retry append nothing twice."""

    def __init__(self, send: Send, timeout_s: float = TIMEOUT_S) -> None:
        self._send = send
        self._timeout_s = timeout_s
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
        # A request id belongs to the tenant of its first draft: calls of several tenants cannot share one.
        for _, group in groupby(calls, lambda call: call.item[0].tenant if call.item else ""):
            await self._send_together(list(group))

    async def _send_together(self, calls: Sequence[PendingCall[Sequence[Draft], list[int]]]) -> None:
        drafts = [draft for call in calls for draft in call.item]
        # Ids begin with the time, so that those of one day lie side by side in the server's index.
        request_id = f"{time.time_ns():016x}-{secrets.token_hex(8)}"
        try:
            seqs = await self._send_until_deadline(drafts, RequestRef(request_id), first_write_wins=False)
        except Exception as error:
            if len(calls) > 1 and is_rejection(error):
                # A rejected batch wrote nothing: send each call alone, so that one bad draft fails only its own call.
                # After any other error the batch may have been written and must not get a new id.
                for call in calls:
                    await self._send_together([call])
                return
            start = 0
            for call in calls:
                part = RequestRef(request_id, len(drafts), start) if len(calls) > 1 else RequestRef(request_id)
                call.fail(_with_request(error, part))
                start += call.count
            return
        start = 0
        for call in calls:
            call.answer(seqs[start : start + call.count])
            start += call.count

    async def send(self, drafts: Sequence[Draft], request_id: str, first_write_wins: bool = False) -> list[int]:
        """Send one request by itself: with an id that the caller chose, or that an earlier error has."""
        request = RequestRef.parse(request_id)
        try:
            return await self._send_until_deadline(drafts, request, first_write_wins)
        except Exception as error:
            raise _with_request(error, request) from error

    async def _send_until_deadline(
        self, drafts: Sequence[Draft], request: RequestRef, first_write_wins: bool
    ) -> list[int]:
        return await retry_async(
            lambda: self._send(drafts, request, first_write_wins),
            WHILE_UNAVAILABLE,
            can_retry=is_retryable,
            deadline_s=self._timeout_s,
        )


def _with_request(error: Exception, request: RequestRef) -> Exception:
    """The error with the request id, if it is not known whether the request was carried out."""
    if not isinstance(error, TapeError) or is_rejection(error):
        return error
    error = copy.copy(error)  # the calls of a batch have different ids
    error.request_id = str(request)
    error.add_note(f"It is not known whether it was appended; request_id={str(request)!r} appends it at most once.")
    return error


def is_rejection(error: Exception) -> bool:
    """Whether nothing was written, because of what one draft says: it is invalid, not permitted, or exists already."""
    return isinstance(error, InvalidInput) or (isinstance(error, TapeError) and error.status in REJECTED)


def _bytes_of(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
