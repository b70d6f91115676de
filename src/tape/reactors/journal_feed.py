"""Being told of entries as they come, instead of asking for them."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from tape.client.aio import AsyncTapeClient
from tape.errors import TapeError
from tape.model.entry import Entry

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
        self._leave: Callable[[], object] = lambda: None
        self._is_following = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tape-waker", daemon=True)

    def __enter__(self) -> Waker:
        self._thread.start()
        self._is_following.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._follow())
        except asyncio.CancelledError:
            pass
        except Exception:
            log.exception("nobody is told of new entries any more")

    async def _follow(self) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._leave = lambda: loop.is_closed() or loop.call_soon_threadsafe(task.cancel)
        self._is_following.set()
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
