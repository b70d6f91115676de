"""Several backends at once."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

from tape.session.backends.protocol import TapeBackend
from tape.session.mirror import BackendError, BackendHealth, Mirror


class ChainBackend:
    """Appends every entry to each of its backends; one that fails is retried and never blocks the others.

    `ChainBackend([a, b])` and `ChainBackend(a, b)` are the same. Reads are answered by the one that has most.
    """

    def __init__(self, *backends: TapeBackend | Iterable[TapeBackend]) -> None:
        found: list[Any] = []
        for each in backends:
            if hasattr(each, "append") and not isinstance(each, list):
                found.append(each)
            else:
                found.extend(each)  # what has no append() is an iterable of backends
        self._mirrors = [Mirror(backend) for backend in found]
        self._lock = threading.Lock()

    @property
    def backends(self) -> list[Any]:
        """The backends in their order."""
        return [mirror.backend for mirror in self._mirrors]

    @property
    def errors(self) -> list[BackendError]:
        """The latest failures of all of them."""
        return [error for mirror in self._mirrors for error in mirror.errors]

    @property
    def health(self) -> BackendHealth:
        """The counts of all of them together."""
        parts = [mirror.health for mirror in self._mirrors]
        return BackendHealth(
            sum(part.failures for part in parts), sum(part.pending for part in parts), sum(part.lost for part in parts)
        )

    def append(self, entry: dict[str, Any]) -> None:
        """Append an entry to all."""
        with self._lock:
            for mirror in self._mirrors:
                mirror.append(entry)

    def resume(self, entries: list[dict[str, Any]]) -> None:
        """Append to each the entries that only the others have, as after a crash."""
        for mirror in self._mirrors:
            mirror.resume(entries)

    def read_since(self, seq: int) -> list[dict[str, Any]]:
        """The entries from a seq on, from the backend that has most of them."""
        answers = [mirror.ask("read_since", seq) or [] for mirror in self._mirrors]
        return max(answers, key=len, default=[])

    def iterate_since(self, seq: int) -> Iterator[dict[str, Any]]:
        """The same one entry at a time, from the first backend that lacks none."""
        complete = [mirror for mirror in self._mirrors if mirror.is_complete and (mirror.ask("head") or 0) > seq]
        return complete[0].read_range(seq, complete[0].ask("head")) if complete else iter(())

    def head(self) -> int:
        """The highest head among them."""
        return max((mirror.ask("head") or 0 for mirror in self._mirrors), default=0)

    def clear(self) -> None:
        """Clear all."""
        for mirror in self._mirrors:
            mirror.forget()
            mirror.ask("clear")

    def flush(self) -> None:
        """Retry the entries that failed, then flush all."""
        self._finish("flush")

    def close(self) -> None:
        """Flush and close all."""
        self._finish("close")

    def _finish(self, how: str) -> None:
        with self._lock:
            for mirror in self._mirrors:
                mirror.catch_up()
        for mirror in self._mirrors:
            mirror.ask(how)
