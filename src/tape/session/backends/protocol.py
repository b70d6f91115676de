"""The interface of a backend."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class TapeBackend(Protocol):
    """Keeps a copy of every entry. `append` alone is enough to be written to.

    Entries come one at a time, in order. A backend may raise: the tape keeps what was refused and tries again.
    `flush()` and `close()`, where a backend has them, are called by those of the tape. A class that defines
    `append_line(entry, line)` beside `append` may get the line of JSON along with an entry; its subclasses do not.
    """

    def append(self, entry: dict[str, Any]) -> None:
        """Keep one entry."""

    def read_since(self, seq: int) -> list[dict[str, Any]]:
        """The entries from a seq on."""

    def head(self) -> int:
        """The seq after the newest entry; 0 if there is none."""

    def clear(self) -> None:
        """Forget everything."""
