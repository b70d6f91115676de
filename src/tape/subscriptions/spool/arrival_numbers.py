"""Arrival numbers: they count from 1, and no number is used twice, also after a crash."""

from __future__ import annotations

from tape.subscriptions.spool.backend import Area, SpoolBackend

# Numbers reserved with one write. After a crash at most so many are skipped.
BLOCK = 1_000
_NAME = "numbers"


class ArrivalNumbers:
    """The arrival numbers of one backend. The upper bound is written there before numbers are used."""

    def __init__(self, backend: SpoolBackend) -> None:
        self.last = 0
        self._backend = backend
        self._reserved = 0

    async def reserve(self, count: int) -> None:
        """Reserve `count` numbers that no other process uses."""
        if self.last + count <= self._reserved:
            return
        kept = await self._backend.get(Area.CONTROL, _NAME) or b""
        up_to = int(kept) if kept.isdigit() else 0
        if up_to > self._reserved:  # by an earlier process, or by a concurrent one
            self.last = max(self.last, up_to)
        reserved = self.last + count + BLOCK
        await self._backend.put(Area.CONTROL, [(_NAME, b"%d" % reserved)])
        self._reserved = reserved
