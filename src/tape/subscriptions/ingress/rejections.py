"""Events about rejected deliveries and handshakes: equal ones of a subscription within a second are one event."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from tape.errors import ApiRefused, TapeError
from tape.subscriptions import events
from tape.subscriptions.events import SubscriptionEvent, SubscriptionRef

log = logging.getLogger(__name__)

# Unauthenticated senders cause rejections: a flood of them must not fill the journal.
WINDOW_S = 1.0
UNKNOWN_LISTENER = SubscriptionRef("unknown", "unknown")

EmitEvents = Callable[[Sequence[SubscriptionEvent]], Awaitable[None]]


class _Counted(NamedTuple):
    """What is counted: a rejection with its reason and status, or a handshake with its kind and status 200."""

    ref: SubscriptionRef
    word: str
    status: int
    is_handshake: bool = False


class IngressEvents:
    """Counts rejections and handshakes and emits one event per second, subscription and reason or kind."""

    def __init__(self, emit: EmitEvents, emitter: str = "ingress") -> None:
        self._emit = emit
        self._emitter = emitter
        self._counts: Counter[_Counted] = Counter()
        self._emitting: asyncio.Task[None] | None = None

    def add(self, ref: SubscriptionRef, reason: str, status: int) -> None:
        """Count a rejection. `UNKNOWN_LISTENER` stands for all names that do not exist."""
        self._count(_Counted(ref, reason, status))

    def add_handshake(self, ref: SubscriptionRef, kind: str) -> None:
        """Count a handshake that was answered."""
        self._count(_Counted(ref, kind, 200, is_handshake=True))

    def _count(self, counted: _Counted) -> None:
        self._counts[counted] += 1
        if self._emitting is None:
            self._emitting = asyncio.create_task(self._emit_periodically())

    async def close(self) -> None:
        """Emit the pending counts."""
        if self._emitting is not None:
            self._emitting.cancel()
            await asyncio.gather(self._emitting, return_exceptions=True)
        await self._flush()

    async def _emit_periodically(self) -> None:
        try:
            while self._counts:
                await self._flush()
                await asyncio.sleep(WINDOW_S)
        finally:
            self._emitting = None

    async def _flush(self) -> None:
        counts, self._counts = self._counts, Counter()
        to_emit = [
            events.handshake(each.ref, each.word, count=count, emitter=self._emitter)
            if each.is_handshake
            else events.rejected(each.ref, each.word, each.status, count=count, emitter=self._emitter)
            for each, count in counts.items()
        ]
        if not to_emit:
            return
        try:
            await self._emit(to_emit)
        except TapeError as error:
            if isinstance(error, ApiRefused) and error.http_status < 500:
                log.error("%d rejections and handshakes: the journal rejects the event: %s", counts.total(), error)
                return
            self._counts.update(counts)
            log.warning("%d rejections and handshakes: the event is not written yet: %s", counts.total(), error)
