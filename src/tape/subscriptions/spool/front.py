"""The front of a spool: its oldest items, read ahead in pages."""

from __future__ import annotations

from collections import deque

from tape.subscriptions.spool.backend import Area, SpoolBackend, StoredObject

_AHEAD = 1_000


class SpoolFront:
    """Iterates over live items, oldest first, with a read-ahead of 1,000 keys. An item can be removed meanwhile."""

    def __init__(self, backend: SpoolBackend) -> None:
        self._backend = backend
        self._ahead: deque[StoredObject] = deque()
        self._passed = ""

    async def peek(self) -> StoredObject | None:
        """The first item that was not passed; None at the end."""
        if not self._ahead:
            self._ahead.extend(await self._backend.page(Area.LIVE, self._passed, _AHEAD))
        return self._ahead[0] if self._ahead else None

    def step(self, first: StoredObject) -> None:
        """Pass the first item, unless another task did."""
        if self._ahead and self._ahead[0] == first:
            self._passed = self._ahead.popleft().key

    def reset(self) -> None:
        """Start again from the oldest item."""
        self._ahead.clear()
        self._passed = ""
