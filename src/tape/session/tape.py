"""The tape: everything that happened in a session, in one order, for as many readers as there are."""

from __future__ import annotations

import os
import sys
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from itertools import chain
from operator import index
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from tape.errors import InvalidEvent, SeqTaken, SessionCursorExpired
from tape.session.backends.memory import NullBackend
from tape.session.builders import ENTRIES, ENTRIES_AND_LINES
from tape.session.entry import EventRecord, Recorded, check_keys, own
from tape.session.lines import BadLine, read_entries, to_line
from tape.session.mirror import BackendError, BackendHealth, Mirror

if TYPE_CHECKING:
    import asyncio

    from tape.session.backends.protocol import TapeBackend


class SessionTape:
    """An append-only record of a session. Every entry gets the next `seq`, from 0; a cursor is such a number.

    Write and read from any thread; `tail()` from any event loop. `max_events` limits how many entries stay in memory
    (0: all); older ones are read from the backend, if it has them. A `backend` gets a copy of every entry; one that
    already holds a session is continued.
    """

    _continues = True  # a session that the backend already holds

    def __init__(self, *, max_events: int = 0, backend: TapeBackend | None = None) -> None:
        self.backend: TapeBackend = NullBackend() if backend is None else backend
        self.bad_lines: list[BadLine] = []
        self._mirror = Mirror(self.backend)
        self._append: Callable[..., None] | None = None
        if type(self.backend) is not NullBackend:
            self._append = self._mirror.append
        self._builders = ENTRIES_AND_LINES if self._mirror.takes_lines else ENTRIES
        self._max = max(max_events, 0)
        self._lock = threading.RLock()
        self._waiters: dict[asyncio.Future[None], asyncio.AbstractEventLoop] = {}
        self._cleared = 0
        self._entries: list[Any]
        self._head: int
        self._start: int
        self._begin([], 0)
        if self._continues and (head := _head_of(self.backend)) > 0:
            entries = self.backend.read_since(max(head - self._max, 0) if self._max else 0)
            if (resume := getattr(self.backend, "resume", None)) is not None:
                resume(list(entries))
            self._begin(entries, head)
            self.bad_lines = list(getattr(self.backend, "bad_lines", ()))

    def __enter__(self) -> SessionTape:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ── writing ──────────────────────────────────────────────────────────────────────────────────

    def record(self, event: Any) -> Recorded:
        """Record an event (a dataclass of `tape.session`, one of your own, or a dict with a `kind`); the entry.

        An event that cannot be recorded raises InvalidEvent and uses up no seq. A backend that fails raises nothing:
        see `backend_errors`.
        """
        build = self._builders.get(type(event)) or self._builders.learn(event)
        try:
            # Within `try`, because an interrupt may be raised as soon as this returns. `with` takes 0.1 µs longer, a
            # tenth of all that is done here.
            self._lock.acquire()
            seq = self._head
            entry, line, given = build(event, seq, (monotonic_ns() - self._start) // 1_000_000 / 1_000)
            self._head = seq + 1
            self._entries.append(entry)
            if self._max:
                self._evict()
            if self._append is not None:
                self._append(entry, line)
            if self._waiters:
                self._wake()
        except BaseException:
            self._release_if_owned()
            raise
        self._lock.release()
        return Recorded(given)

    def record_dict(self, entry: Mapping[str, Any]) -> Recorded:
        """Record an entry that may already have a `seq` and `t`, as from another tape. Its seq may leave a gap."""
        if not isinstance(entry, Mapping):
            raise InvalidEvent(f"record_dict() takes a dict, not {type(entry).__name__}: {entry!r:.80}.")
        check_keys(entry)
        with self._lock:
            seq = entry.get("seq", self._head)
            if not isinstance(seq, int) or isinstance(seq, bool):
                raise InvalidEvent(f"The entry has seq {seq!r}; it must be a whole number, or be left out.")
            if seq < self._head:
                raise SeqTaken(f"seq {seq} lies before the head of the tape ({self._head}). Leave it out to get that.")
            given = {"seq": seq, "t": (monotonic_ns() - self._start) // 1_000_000 / 1_000, **entry}
            made = own(given)
            self._has_gaps |= bool(self.size) and seq != self._head
            self._head = seq + 1
            self._entries.append(made)
            self._evict()
            if self._append is not None:
                self._append(made)
            self._wake()
        return Recorded(given)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    @property
    def head(self) -> int:
        """The seq that the next entry gets."""
        return self._head

    @property
    def watermark(self) -> int:
        """The seq of the oldest entry that is still in memory; `head` if there is none."""
        with self._lock:
            return int(self._entries[self._first]["seq"]) if self.size else self._head

    @property
    def size(self) -> int:
        """How many entries are in memory."""
        return len(self._entries) - self._first

    @property
    def events(self) -> list[dict[str, Any]]:
        """All entries in memory, oldest first."""
        with self._lock:
            return self._entries[self._first :]

    def replay(self) -> list[dict[str, Any]]:
        """All entries in memory, oldest first."""
        return self.events

    def since(self, seq: int, *, skip_expired: bool = False) -> Iterator[dict[str, Any]]:
        """The entries from a seq on, as they are now: recording while iterating is safe.

        Those below the watermark are read from the backend. Where that has no such entries, it raises
        SessionCursorExpired, or goes on with the oldest entry there is if asked to skip.
        """
        return iter(self._from(index(seq), skip_expired))

    def records_since(self, seq: int, *, skip_expired: bool = False) -> Iterator[EventRecord]:
        """The same as typed views."""
        return map(EventRecord.from_dict, self._from(index(seq), skip_expired))

    async def tail(self, from_seq: int = 0, *, skip_expired: bool = False) -> AsyncIterator[dict[str, Any]]:
        """The entries from a seq on, in order, then each new one, until you stop or cancel.

        What a wake-up costs depends on the new entries alone. A reader that is so slow that its next entry has left
        memory gets it from the backend, or else SessionCursorExpired, unless asked to skip. After `clear()` it goes on
        with seq 0.
        """
        position, cleared = index(from_seq), self._cleared
        while True:
            if cleared != self._cleared:
                position, cleared = 0, self._cleared
            for entry in self._from(position, skip_expired):
                position = entry["seq"] + 1
                yield entry
            await self._more(position, cleared)

    def filter(self, kind: str) -> list[dict[str, Any]]:
        """The entries of one kind."""
        return [entry for entry in self.events if entry.get("kind") == kind]

    def summary(self) -> dict[str, Any]:
        """How many entries of which kind, over how many seconds, and both ends."""
        with self._lock:
            entries, head, watermark = self.events, self._head, self.watermark
        return {
            "total_events": len(entries),
            "duration_seconds": entries[-1].get("t", 0.0) if entries else 0.0,
            "event_counts": dict(Counter(entry.get("kind", "") for entry in entries)),
            "head": head,
            "watermark": watermark,
        }

    # ── the backend ──────────────────────────────────────────────────────────────────────────────

    @property
    def backend_errors(self) -> list[BackendError]:
        """The latest failures of the backend, and of the backends within it."""
        return [*self._mirror.errors, *getattr(self.backend, "errors", ())]

    @property
    def backend_health(self) -> BackendHealth:
        """How often backends failed, how many entries wait for a retry, how many were dropped."""
        own = self._mirror.health
        inner = getattr(self.backend, "health", None) or BackendHealth()
        return BackendHealth(own.failures + inner.failures, own.pending + inner.pending, own.lost + inner.lost)

    def flush(self) -> int:
        """Retry failed entries and flush the backend; returns how many entries it still lacks."""
        with self._lock:
            self._mirror.catch_up()
        self._mirror.ask("flush")  # without the lock, so that recording does not wait for it
        return self.backend_health.pending

    def close(self) -> None:
        """Flush and close the backend."""
        with self._lock:
            self._mirror.catch_up()
        self._mirror.ask("close")

    # ── the whole ────────────────────────────────────────────────────────────────────────────────

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what is in memory to a file: whole or not at all, and on the disk when this returns."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = target.with_name(f"{target.name}.{os.getpid()}.tmp")
        try:
            with scratch.open("wb") as file:
                file.writelines(map(to_line, self.events))
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(target)
        finally:
            scratch.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, max_events: int = 0, append: bool = False) -> SessionTape:
        """The tape that a file holds, rotated ones included, without holding the file. No file is an empty tape.

        What is recorded on it stays in memory until `save()`, and the first `record()` logs that; with `append` it
        continues the file, as `SessionTape(backend=JsonlBackend(path))` does. Lines that are no entries are skipped and
        reported in `bad_lines`. Entries without a seq, from before there were any, get the index of their line.
        """
        if append:
            from tape.session.backends.jsonl import JsonlBackend

            return cls(max_events=max_events, backend=JsonlBackend(path))
        entries, reading = read_entries(Path(path))
        tape = cls(max_events=max_events)
        tape.bad_lines = reading.bad_lines
        tape._begin(entries, entries[-1]["seq"] + 1 if entries else 0)
        tape._append = tape._warner(path)
        return tape

    def clear(self, *, backend: bool = False) -> None:
        """Forget what is in memory and begin at 0 again.

        The backend keeps what it has, and numbering then goes on after it; with `backend=True` it is cleared, too.
        """
        with self._lock:
            if backend:
                self._mirror.forget()
                self.backend.clear()
            self._cleared += 1
            self._begin([], _head_of(self.backend) if self._continues else 0)
            self._wake()

    # ── inside ───────────────────────────────────────────────────────────────────────────────────

    def _begin(self, entries: list[Any], head: int) -> None:
        self._entries = entries
        self._first = 0  # entries before it have been let go and are removed now and then
        self._head = head
        self._expired = 0  # every seq below was let go
        last = entries[-1] if entries else {}
        self._has_gaps = bool(entries) and last["seq"] - entries[0]["seq"] != len(entries) - 1
        # Times go on where they were, so that they never go back along the tape.
        t = last.get("t", 0.0)
        self._start = monotonic_ns() - int((t if isinstance(t, int | float) and t > 0 else 0) * 1e9)
        if self._max and (excess := len(entries) - self._max) > 0:
            del entries[:excess]
        if self._max and entries and head > self._max:
            self._expired = entries[0]["seq"]

    def _warner(self, path: str | os.PathLike[str]) -> Callable[..., None]:
        def warn(entry: dict[str, Any], line: bytes | None = None) -> None:
            self._append = None
            import logging

            logging.getLogger("tape.session").warning(
                "seq %d is recorded in memory only: the tape was loaded from %s, which is not written until save()."
                " SessionTape.load(path, append=True) continues the file.",
                entry["seq"],
                path,
            )

        return warn

    def _release_if_owned(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:  # interrupted while it waited for the lock
            pass

    def _evict(self) -> None:
        if not self._max:
            return
        entries, first = self._entries, self._first
        if len(entries) - first > self._max:
            self._expired = entries[first]["seq"] + 1
            entries[first] = None
            self._first = first = first + 1
            if first > self._max:
                del entries[:first]
                self._first = 0

    def _from(self, seq: int, skip_expired: bool) -> Iterable[dict[str, Any]]:
        with self._lock:
            expired = self._expired
            if seq >= expired or not self._mirror.is_complete:
                if seq < expired and not skip_expired:
                    raise SessionCursorExpired(seq, self.watermark)
                return self._in_memory(seq)
            newer, watermark = self._in_memory(expired), self.watermark
        older = self._mirror.read_range(seq, expired)
        first = next(older, None)
        if (first is None or first["seq"] > seq) and not skip_expired:
            oldest = next(self._mirror.read_range(0, expired), None)
            if oldest is None or oldest["seq"] > seq:  # else there never was an entry with that seq
                raise SessionCursorExpired(seq, watermark if oldest is None else oldest["seq"])
        return newer if first is None else chain((first,), older, newer)

    def _in_memory(self, seq: int) -> list[dict[str, Any]]:
        if seq >= self._head or not self.size:
            return []
        if self._has_gaps:
            start = bisect_left(self._entries, seq, self._first, key=lambda entry: entry["seq"])
        else:
            start = self._first + max(seq - self._entries[self._first]["seq"], 0)
        return self._entries[start:]

    async def _more(self, position: int, cleared: int) -> None:
        """Return when there is an entry from that position on."""
        from asyncio import get_running_loop, sleep

        loop = get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            is_there = self._head > position or cleared != self._cleared
            if not is_there:
                self._waiters[future] = loop
        if is_there:
            await sleep(0)  # a tape that is never quiet must not keep the loop, or a cancellation, from its turn
            return
        try:
            await future
        finally:
            with self._lock:
                self._waiters.pop(future, None)

    def _wake(self) -> None:
        if not self._waiters:
            return
        waiters, self._waiters = self._waiters, {}
        running = sys.modules["asyncio"]._get_running_loop()
        for future, loop in waiters.items():
            if loop is running:
                _resolve(future)
                continue
            try:
                loop.call_soon_threadsafe(_resolve, future)
            except RuntimeError:  # its loop is closed
                pass


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _head_of(backend: Any) -> int:
    """Where a backend is; one that can only be appended to begins at 0."""
    head = getattr(backend, "head", None)
    return head() if head is not None and hasattr(backend, "read_since") else 0


async def stream_from_cursor(
    tape: SessionTape, from_seq: int = 0, *, kind: str | None = "text", skip_expired: bool = False
) -> AsyncIterator[dict[str, Any]]:
    """The entries of one kind from a cursor on, history first and then live; `kind=None` is every kind."""
    from contextlib import aclosing

    async with aclosing(tape.tail(from_seq, skip_expired=skip_expired)) as entries:  # type: ignore[type-var]
        async for entry in entries:
            if kind is None or entry.get("kind") == kind:
                yield entry
