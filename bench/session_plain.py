"""The obvious way to write a tape: every field asked for by name, the file opened for each entry, tails that look
through everything at each wake-up. What the figures of ours are held against."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any


class PlainTape:
    """Records into a deque, perhaps also into a file."""

    def __init__(self, path: Path | None = None) -> None:
        self._entries: deque[dict[str, Any]] = deque()
        self._seq = 0
        self._start = time.monotonic()
        self._path = path
        self._changed: asyncio.Condition | None = None

    def record(self, event: Any) -> int:
        """Record an event; its seq."""
        seq = self._seq
        self._seq += 1
        entry = {"seq": seq, "t": round(time.monotonic() - self._start, 3), "kind": event.kind}
        entry["type"] = type(event).__name__
        for name in type(event).__dataclass_fields__:
            if name != "kind":
                entry[name] = getattr(event, name)
        self._entries.append(entry)
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                file.write(json.dumps(entry) + "\n")
        if self._changed is not None:
            try:
                asyncio.get_running_loop().create_task(self._notify())
            except RuntimeError:
                pass
        return seq

    async def tail(self, from_seq: int = 0) -> AsyncIterator[dict[str, Any]]:
        """The entries from a seq on, then each new one."""
        if self._changed is None:
            self._changed = asyncio.Condition()
        position = from_seq
        while True:
            for entry in [entry for entry in self._entries if entry["seq"] >= position]:
                position = entry["seq"] + 1
                yield entry
            async with self._changed:
                while self._seq <= position:
                    await self._changed.wait()

    async def _notify(self) -> None:
        assert self._changed is not None
        async with self._changed:
            self._changed.notify_all()
