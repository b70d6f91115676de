"""Numbers of arrival: they count from 1, and none is given out twice, whoever died in between."""

from __future__ import annotations

from tape.subscriptions.spool.backend import Area, SpoolBackend

# How many are put aside with one write. As many are passed over after a crash, at most.
BLOCK = 1_000
_NAME = "numbers"


class ArrivalNumbers:
    """Counts what arrives at one place. Up to where numbers may be given out is written there before they are."""

    def __init__(self, backend: SpoolBackend) -> None:
        self.last = 0
        self._backend = backend
        self._reserved = 0

    async def reserve(self, count: int) -> None:
        """See to it that so many numbers can be given out that nobody else has."""
        if self.last + count <= self._reserved:
            return
        kept = await self._backend.get(Area.CONTROL, _NAME) or b""
        up_to = int(kept) if kept.isdigit() else 0
        if up_to > self._reserved:  # by an earlier process, or by one beside us
            self.last = max(self.last, up_to)
        reserved = self.last + count + BLOCK
        await self._backend.put(Area.CONTROL, [(_NAME, b"%d" % reserved)])
        self._reserved = reserved
