"""The newest entries in memory, shared by every subscription that is a little behind."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice

from tape.model.entry import Entry


class Ring:
    """The tail of the journal, bounded in entries and bytes. `global_seq` has no gaps in it, so it is an index."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._entries: deque[Entry] = deque()
        self._bytes = 0
        self._max_entries = max_entries
        self._max_bytes = max_bytes

    def extend(self, entries: Iterable[Entry]) -> None:
        """Add the entries that follow the newest one. After a range without entries the ring begins anew."""
        ring = self._entries
        for entry in entries:
            if ring and entry.global_seq != ring[-1].global_seq + 1:
                self.clear()
            ring.append(entry)
            self._bytes += len(entry.payload_json)
        while len(ring) > self._max_entries or self._bytes > self._max_bytes:
            self._bytes -= len(ring.popleft().payload_json)

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._bytes = 0

    def after(self, position: int, limit: int) -> list[Entry] | None:
        """The entries after a position, or None if the ring no longer has the first of them."""
        if not self._entries or position < self._entries[0].global_seq - 1:
            return None
        skip = position - self._entries[0].global_seq + 1
        return list(islice(self._entries, skip, skip + limit))
