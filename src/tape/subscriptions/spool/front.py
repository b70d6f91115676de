"""The front of a spool: its oldest messages by name, without listing the whole place for each look."""

from __future__ import annotations

from collections import deque

from tape.subscriptions.spool.backend import Area, SpoolBackend, StoredObject

_AHEAD = 1_000


class SpoolFront:
    """Walks over what waits, the oldest first, a thousand names ahead. One of them may be gone when it is looked at."""

    def __init__(self, backend: SpoolBackend) -> None:
        self._backend = backend
        self._ahead: deque[StoredObject] = deque()
        self._passed = ""

    async def peek(self) -> StoredObject | None:
        """The first that was not passed; None if there is none."""
        if not self._ahead:
            self._ahead.extend(await self._backend.page(Area.LIVE, self._passed, _AHEAD))
        return self._ahead[0] if self._ahead else None

    def step(self, first: StoredObject) -> None:
        """Pass the first, unless somebody else did."""
        if self._ahead and self._ahead[0] == first:
            self._passed = self._ahead.popleft().key

    def reset(self) -> None:
        """Something came back to the front, or was passed and has stayed."""
        self._ahead.clear()
        self._passed = ""
