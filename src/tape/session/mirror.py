"""Writes to a backend without ever failing the session: rejected entries are kept, reported and retried."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tape.base.retry import UNLIMITED, Backoff, RetryPolicy
from tape.errors import InvalidInput

RETRY = RetryPolicy(max_attempts=UNLIMITED, initial_interval_s=0.05, max_interval_s=5.0, jitter=0)
MAX_BACKLOG = 100_000
MAX_ERRORS = 100


@dataclass(frozen=True, slots=True)
class BackendError:
    """A backend failed on an entry. The entry is kept and retried."""

    backend: str
    seq: int
    error: Exception

    def __str__(self) -> str:
        return f"{self.backend} failed on seq {self.seq}: {type(self.error).__name__}: {self.error}"


@dataclass(frozen=True, slots=True)
class BackendHealth:
    """Counts of a tape's backends: failed attempts, entries that wait for a retry, entries dropped."""

    failures: int = 0
    pending: int = 0
    lost: int = 0


class Mirror:
    """Writes to one backend in order and never raises. Use from one thread at a time."""

    def __init__(self, backend: Any, *, max_backlog: int = MAX_BACKLOG) -> None:
        if not callable(getattr(backend, "append", None)):
            raise InvalidInput(f"{backend!r} is no backend: it needs an append(entry) method.")
        self.backend = backend
        self.errors: deque[BackendError] = deque(maxlen=MAX_ERRORS)
        self._failures = 0
        self._lost = 0
        self._append = backend.append
        # An append() that was overridden gets every entry; append_line() of the class below would pass it by.
        defined = vars(type(backend))
        is_own = "append_line" in defined and getattr(self._append, "__func__", None) is defined.get("append")
        self._append_line: Any = backend.append_line if is_own else None
        self._backlog: deque[dict[str, Any]] = deque()
        self._max_backlog = max_backlog
        self._backoff = Backoff(RETRY)
        self._retry_at = 0.0
        self._kinds_logged: set[type] = set()

    @property
    def takes_lines(self) -> bool:
        """Whether the backend takes the line of an entry along with it."""
        return self._append_line is not None

    @property
    def health(self) -> BackendHealth:
        """The counts so far."""
        return BackendHealth(self._failures, len(self._backlog), self._lost)

    def append(self, entry: dict[str, Any], line: bytes | None = None) -> None:
        """Write an entry, or keep it for later. Give its line only to a backend that takes lines."""
        if not self._backlog:
            try:
                return self._append(entry) if line is None else self._append_line(entry, line)  # type: ignore[no-any-return]
            except Exception as error:
                self._failed(entry, error)
        self._backlog.append(entry)
        if len(self._backlog) > self._max_backlog:
            self._drop_oldest()
        if time.monotonic() >= self._retry_at:
            self.catch_up()
        return None

    def catch_up(self) -> int:
        """Offer what was refused once more; how many entries still wait."""
        while self._backlog:
            try:
                self._append(self._backlog[0])
            except Exception as error:
                self._failed(self._backlog[0], error)
                break
            self._backlog.popleft()
            self._backoff.reset()
        return len(self._backlog)

    def ask(self, name: str, *arguments: Any) -> Any:
        """Call an optional method of the backend; None if it has none or the method fails."""
        method = getattr(self.backend, name, None)
        if method is None:
            return None
        try:
            return method(*arguments)
        except Exception as error:
            self._failed(self._backlog[0] if self._backlog else {"seq": -1}, error)
            return None

    @property
    def is_complete(self) -> bool:
        """Whether the backend has every entry that was written, and can be read without a wait for the network."""
        return not (self._backlog or self._lost or getattr(self.backend, "is_remote", False))

    def read_range(self, seq: int, end: int) -> Iterator[dict[str, Any]]:
        """The entries that the backend has from a seq on, up to another; nothing if it cannot be read."""
        iterate = getattr(self.backend, "iterate_since", None) or getattr(self.backend, "read_since", None)
        if iterate is None:
            return
        try:
            for entry in iterate(seq):
                if entry["seq"] >= end:
                    return
                yield entry
        except Exception as error:
            self._failed({"seq": seq}, error)
            raise

    def resume(self, entries: list[dict[str, Any]]) -> None:
        """Append the entries that the backend lacks of a continued session; without `head` only new ones."""
        if not hasattr(self.backend, "read_since") or (head := self.ask("head")) is None:
            return
        for entry in entries:
            if entry["seq"] >= head:
                self.append(entry)

    def forget(self) -> None:
        """Drop waiting entries: the tape was cleared."""
        self._backlog.clear()

    def _failed(self, entry: dict[str, Any], error: Exception) -> None:
        self._failures += 1
        failure = BackendError(type(self.backend).__name__, entry.get("seq", -1), error)
        self.errors.append(failure)
        self._retry_at = time.monotonic() + self._backoff.next_delay()
        if type(error) not in self._kinds_logged:
            self._kinds_logged.add(type(error))
            _log().error("%s. The session continues; the entry is kept and retried.", failure)

    def _drop_oldest(self) -> None:
        entry = self._backlog.popleft()
        self._lost += 1
        if self._lost == 1:
            _log().error(
                "%s has rejected %d entries; seq %d is dropped, as are further ones until it accepts them again.",
                type(self.backend).__name__,
                self._max_backlog,
                entry.get("seq", -1),
            )


def _log() -> Any:
    import logging  # takes longer to import than all of tape.session, and is needed only here

    return logging.getLogger("tape.session")
