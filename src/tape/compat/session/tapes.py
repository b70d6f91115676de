"""The tape as programs of the durable event log know it."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from pathlib import Path
from time import monotonic_ns
from typing import Any

from tape.session import tape as tapes
from tape.session.entry import check_keys, own


class RecordedSeq(int):
    """The seq of a recorded entry: an int that also gives the entry's fields, `seq["kind"]`."""

    entry: dict[str, Any]

    def __new__(cls, entry: Mapping[str, Any]) -> RecordedSeq:
        """The seq of an entry."""
        made = super().__new__(cls, entry["seq"])
        made.entry = dict(entry)
        return made

    def __getitem__(self, key: str) -> Any:
        return self.entry[key]

    def get(self, key: str, default: Any = None) -> Any:
        """A field of the entry."""
        return self.entry.get(key, default)


class SessionTape(tapes.SessionTape):
    """Begins at 0 whatever its backend holds, and reads memory alone: from below the watermark, what is left."""

    _continues = False

    def record(self, event: Any) -> RecordedSeq:  # type: ignore[override]  # an int, as those programs expect
        """Record an event; its seq."""
        return RecordedSeq(super().record(event))

    def record_dict(self, entry: Mapping[str, Any]) -> RecordedSeq:  # type: ignore[override]
        """Record an entry; one that brings a seq keeps it, also below the head. Its seq."""
        seq = entry.get("seq")
        if not isinstance(seq, int) or seq >= self.head:
            return RecordedSeq(super().record_dict(entry))
        check_keys(entry)
        with self._lock:
            made = own({"t": (monotonic_ns() - self._start) // 1_000_000 / 1_000, **entry})
            self._has_gaps = True
            self._entries.append(made)
            self._evict()
            if self._append is not None:
                self._append(made)
            self._wake()
        return RecordedSeq(made)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, max_events: int = 0, append: bool = False) -> SessionTape:
        """The tape that a file holds; a line that is not JSON raises json.JSONDecodeError. No file is an empty tape."""
        try:
            lines = Path(path).read_text().splitlines()
        except FileNotFoundError:
            lines = []
        for number, line in enumerate(lines):
            if line.strip() and not isinstance(json.loads(line), dict):
                raise json.JSONDecodeError("the line is no object", line, number)
        loaded = super().load(path, max_events=max_events, append=append)
        assert isinstance(loaded, SessionTape)
        return loaded

    def _from(self, seq: int, skip_expired: bool) -> Iterable[dict[str, Any]]:
        with self._lock:
            return [entry for entry in self._entries[self._first :] if entry["seq"] >= seq]


async def stream_from_cursor(
    tape: tapes.SessionTape, from_seq: int = 0, *, kind: str | None = "text"
) -> AsyncIterator[Any]:
    """The texts of text entries from a cursor on, history first and then live; entries for any other kind, or None."""
    async with aclosing(tape.tail(from_seq, skip_expired=True)) as entries:  # type: ignore[type-var]
        async for entry in entries:
            if kind is None or entry.get("kind") == kind:
                yield entry.get("text", "") if kind == "text" else entry
