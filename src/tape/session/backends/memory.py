"""Backends that touch nothing outside the process."""

from __future__ import annotations

from typing import Any


class NullBackend:
    """Keeps nothing; for sessions that must leave no trace."""

    def append(self, entry: dict[str, Any]) -> None:
        """Drop the entry."""

    def read_since(self, seq: int) -> list[dict[str, Any]]:
        """Nothing."""
        return []

    def head(self) -> int:
        """Always 0."""
        return 0

    def clear(self) -> None:
        """There is nothing to clear."""


class InMemoryBackend:
    """Keeps every entry in the list `entries`, also those that the tape evicts."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def append(self, entry: dict[str, Any]) -> None:
        """Keep the entry."""
        self.entries.append(entry)

    def read_since(self, seq: int) -> list[dict[str, Any]]:
        """The entries from a seq on."""
        return [entry for entry in list(self.entries) if entry["seq"] >= seq]

    def head(self) -> int:
        """The seq after the newest entry."""
        return self.entries[-1]["seq"] + 1 if self.entries else 0

    def clear(self) -> None:
        """Empty the list."""
        self.entries.clear()
