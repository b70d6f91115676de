"""Being told of entries as they come, instead of asking for them."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from tape.client.aio import AsyncTapeClient
from tape.errors import TapeError
from tape.journal.entry import Entry

log = logging.getLogger(__name__)


class Waker:
    """Follows the journal on a thread of its own while a `with` block lasts, and hands each entry to `hear`.

    It begins at the head, or with the oldest entry; a server that goes away is followed again when it is back.
    """

    def __init__(
        self,
        url: str,
        hear: Callable[[Entry], None],
        *,
        pattern: str = "/tape/**",
        where: str = "",
        is_new: bool = True,
    ) -> None:
        self._url = url
        self._hear = hear
        self._pattern = pattern
        self._where = where
        self._is_new = is_new
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="tape-waker", daemon=True)

    def __enter__(self) -> Waker:
        self._task = self._loop.create_task(self._follow())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._task is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        assert self._task is not None
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        except Exception:
            log.exception("nobody is told of new entries any more")

    async def _follow(self) -> None:
        async with AsyncTapeClient(self._url) as client:
            position = await self._head(client) if self._is_new else 0
            async for entry in client.follow(self._pattern, from_global_seq=position, predicate_cel=self._where):
                self._hear(entry)

    async def _head(self, client: AsyncTapeClient) -> int:
        while True:
            try:
                return int((await client.head()).global_seq)
            except TapeError as error:
                if not error.retryable:
                    raise
            await asyncio.sleep(0.5)
