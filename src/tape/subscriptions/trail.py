"""A local trail: every event one line of a JSONL file, as a server's journal would have it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import msgspec

from tape.errors import InvalidInput
from tape.subscriptions.events import Event, stamped

WORKER = "cli-local"


class Trail:
    """Writes events to a file, which is emptied first; each is there when it was told. `seen` counts their types."""

    def __init__(self, path: Path, shown: Callable[[Event], None] = lambda event: None) -> None:
        self.path = path
        self.seen: Counter[str] = Counter()
        self._shown = shown
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = path.open("wb")
        except OSError as error:
            raise InvalidInput(f"the events cannot be written to {path}: {error.strerror}.") from error

    async def write(self, events: Sequence[Event]) -> None:
        """Append events and flush them."""
        named = [stamped(event, WORKER) for event in events]
        await asyncio.to_thread(self._append, b"".join(msgspec.json.encode(event.record()) + b"\n" for event in named))
        for event in named:
            self.seen[event.event_type] += 1
            self._shown(event)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _append(self, lines: bytes) -> None:
        self._file.write(lines)
        self._file.flush()
