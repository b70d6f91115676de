"""Backends as programs of the durable event log know them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tape.session.backends.protocol import TapeBackend
from tape.session.lines import to_line


class InMemoryBackend:
    """Answers as if it were empty. `entries` has what was appended."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def append(self, entry: dict[str, Any]) -> None:
        """Keep the entry in `entries`."""
        self.entries.append(entry)

    def read_since(self, seq: int) -> list[dict[str, Any]]:
        """Always nothing."""
        return []

    def head(self) -> int:
        """Always 0."""
        return 0

    def clear(self) -> None:
        """Empty `entries`."""
        self.entries.clear()


class NullBackend(InMemoryBackend):
    """Keeps nothing."""

    def append(self, entry: dict[str, Any]) -> None:
        """Drop the entry."""


class JsonlBackend:
    """Appends to a file that is open only while it writes: there is no file before the first entry, and no lock.

    Any number may use one path; `tape.session.JsonlBackend` is faster and has one writer.
    """

    def __init__(self, path: str | os.PathLike[str], *, fsync: bool = False) -> None:
        self.path = Path(path)
        self.fsync = fsync
        self._head = max((entry.get("seq", -1) + 1 for entry in self._read()), default=0)

    def append(self, entry: dict[str, Any]) -> None:
        """Write an entry, and the folder if need be."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(to_line(entry))
            if self.fsync:
                file.flush()
                os.fsync(file.fileno())
        self._head = max(self._head, entry.get("seq", -1) + 1)

    def read_since(self, seq: int) -> list[dict[str, Any]]:
        """The entries from a seq on; lines that are no entries are skipped."""
        return [entry for entry in self._read() if entry.get("seq", -1) >= seq]

    def head(self) -> int:
        """The seq after the newest entry that this object knows."""
        return self._head

    def clear(self) -> None:
        """Remove the file."""
        self.path.unlink(missing_ok=True)
        self._head = 0

    def _read(self) -> list[dict[str, Any]]:
        try:
            lines = self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict) and isinstance(entry.get("seq", -1), int):
                found.append(entry)
        return found


class ChainBackend:
    """Appends to backends in order; one that fails keeps the entry from those after it. Reads the first with any."""

    def __init__(self, *backends: TapeBackend | list[TapeBackend]) -> None:
        self.backends: list[TapeBackend] = []
        for each in backends:
            self.backends.extend(each if isinstance(each, list | tuple) else [each])

    def append(self, entry: dict[str, Any]) -> None:
        """Append an entry to all."""
        for backend in self.backends:
            backend.append(entry)

    def read_since(self, seq: int) -> list[dict[str, Any]]:
        """The first answer that is not empty."""
        return next((found for backend in self.backends if (found := backend.read_since(seq))), [])

    def head(self) -> int:
        """The highest head among them."""
        return max((backend.head() for backend in self.backends), default=0)

    def clear(self) -> None:
        """Clear all."""
        for backend in self.backends:
            backend.clear()
