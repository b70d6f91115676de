"""Follows the journal on a thread, so that a worker reacts to new entries instead of polling."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from tape.base.retry import RECONNECT, is_retryable, retry_async
from tape.client.aio import AsyncTapeClient
from tape.model.entry import Entry

log = logging.getLogger(__name__)


class JournalFeed:
    """Follows the journal on its own thread during a `with` block, and calls `on_entry` with each entry.

    It starts at the head, or with the oldest entry, and reconnects when the server was unavailable. It passes over
    damaged entries with a warning.
    """

    def __init__(
        self,
        url: str,
        on_entry: Callable[[Entry], None],
        *,
        pattern: str = "/tape/**",
        where: str = "",
        is_new: bool = True,
    ) -> None:
        self._url = url
        self._on_entry = on_entry
        self._pattern = pattern
        self._where = where
        self._is_new = is_new
        self._stop: Callable[[], object] = lambda: None
        self._is_following = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tape-journal-feed", daemon=True)

    def __enter__(self) -> JournalFeed:
        self._thread.start()
        self._is_following.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._follow())
        except asyncio.CancelledError:
            pass
        except Exception:
            log.exception("journal feed stopped; new entries no longer wake the worker")

    async def _follow(self) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._stop = lambda: loop.is_closed() or loop.call_soon_threadsafe(task.cancel)
        self._is_following.set()
        async with AsyncTapeClient(self._url) as client:
            position = await self._head(client) if self._is_new else 0
            async for entry in client.follow(
                self._pattern, from_global_seq=position, predicate_cel=self._where, skip_gaps=True
            ):
                self._on_entry(entry)

    async def _head(self, client: AsyncTapeClient) -> int:
        head = await retry_async(client.head, RECONNECT, can_retry=is_retryable)
        return int(head.global_seq)
