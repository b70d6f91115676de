"""The file backend: one writer, configurable durability, repair of a torn last line."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tape.base.file_lock import lock_file
from tape.errors import InvalidInput, TapeFileInUse, TapeFileUnusable
from tape.session.lines import BadLine, Reading, iterate, parse, quick_seq, read_entries, segments, to_line

Fsync = Literal["never", "interval", "always"]
BLOCK = 1 << 16
_sync = getattr(os, "fdatasync", os.fsync)
_pid = os.getpid()


def _note_fork() -> None:
    global _pid
    _pid = os.getpid()


if hasattr(os, "register_at_fork"):  # asking the system in each append would take a tenth of its time
    os.register_at_fork(after_in_child=_note_fork)


@dataclass(frozen=True, slots=True)
class LineRepair:
    """Half a line at the end of a file, left by a crash, that was moved to another file."""

    offset: int
    size: int
    moved_to: str


class JsonlBackend:
    """Keeps a tape in a file, one JSON object a line, and continues an existing file.

    `fsync` says when an entry survives a power loss: `"never"` (when the system gets to it), `"interval"` (within
    `fsync_interval_s`), `"always"` (when `append` returns). It survives a killed process in every case.
    With `rotate_bytes` a full file is renamed to `<path>.1`, `.2`, …; `rotate_keep` limits how many are kept.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fsync: Fsync | bool = "never",
        fsync_interval_s: float = 1.0,
        rotate_bytes: int = 0,
        rotate_keep: int = 0,
    ) -> None:
        if fsync not in ("never", "interval", "always", True, False):
            raise InvalidInput(f'fsync {fsync!r} must be "never", "interval" or "always".')
        if fsync_interval_s <= 0:
            raise InvalidInput(f"fsync_interval_s {fsync_interval_s!r} must be more than 0.")
        if rotate_bytes < 0 or rotate_keep < 0:
            raise InvalidInput(f"rotate_bytes {rotate_bytes!r} and rotate_keep {rotate_keep!r} must not be negative.")
        self.path = Path(path).absolute()
        self.fsync: Fsync = fsync if isinstance(fsync, str) else "always" if fsync else "never"
        self.repairs: list[LineRepair] = []
        self.bad_lines: list[BadLine] = []
        self._interval = fsync_interval_s
        self._rotate_bytes = rotate_bytes
        self._rotate_keep = rotate_keep
        self._lock = threading.RLock()
        self._sync_error: OSError | None = None
        self._torn = False
        self._unsynced = threading.Event()
        self._closing = threading.Event()
        self._syncer: threading.Thread | None = None
        self._pid = _pid
        self._fd = -1
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = _open_locked(self.path)
            self._size = self._repair()
            self._head = self._find_head()
            if self.fsync != "never":
                _sync_folder(self.path.parent)
        except OSError as error:
            self._close_file()
            raise TapeFileUnusable(f"The tape cannot be kept in {self.path}: {error}.") from error
        except BaseException:
            self._close_file()
            raise

    # ── called by a tape ────────────────────────────────────────────────────────────────────────

    def append(self, entry: dict[str, Any]) -> None:
        """Write an entry. If this raises, the file is as it was before."""
        self.append_line(entry, to_line(entry))

    def append_line(self, entry: dict[str, Any], line: bytes) -> None:
        """Write an entry whose line is known already."""
        size = len(line)
        with self._lock:
            if _pid != self._pid:
                raise TapeFileInUse(f"{self.path} belongs to the process {self._pid} that opened it, not to its fork.")
            if self._fd < 0:
                self._reopen()
            if self._sync_error is not None:
                error, self._sync_error = self._sync_error, None
                raise error
            if self._torn:
                self._undo()
            if self._rotate_bytes and self._size and self._size + size > self._rotate_bytes:
                self._rotate()
            try:
                written = os.write(self._fd, line)
                while written < size:  # a disk that is nearly full takes a part
                    written += os.write(self._fd, line[written:])
                if self.fsync == "always":
                    _sync(self._fd)
            except BaseException:
                self._torn = True
                with contextlib.suppress(OSError):  # else the next append tries again
                    self._undo()
                raise
            self._size += size
            if (seq := entry.get("seq", -1)) >= self._head:
                self._head = seq + 1
            else:
                self._rises = False
        if self.fsync == "interval":
            self._sync_soon()

    def read_since(self, seq: int) -> list[dict[str, Any]]:
        """The entries from a seq on, of all files."""
        entries, reading = read_entries(self.path, seq)
        if seq <= 0:
            self.bad_lines = reading.bad_lines
        return entries

    def iterate_since(self, seq: int) -> Iterator[dict[str, Any]]:
        """The same as `read_since`, a batch in memory at a time where the seqs of the files rise."""
        if not self._rises:
            yield from self.read_since(seq)
            return
        for batch in iterate(self.path, Reading(), seq):
            for entry in batch:
                if entry["seq"] >= seq:
                    yield entry

    def head(self) -> int:
        """The seq after the newest entry."""
        return self._head

    def clear(self) -> None:
        """Empty the file and remove rotated ones."""
        with self._lock:
            for segment in segments(self.path)[:-1]:
                segment.unlink()
            if self._fd < 0:
                self._reopen()
            os.ftruncate(self._fd, 0)
            self._size = self._head = 0
            self._rises = True

    def flush(self) -> None:
        """Return when all entries are on disk."""
        with self._lock:
            if self._fd >= 0:
                _sync(self._fd)

    def close(self) -> None:
        """Sync and close the file. An append opens it again."""
        self._closing.set()
        self._unsynced.set()
        if self._syncer is not None:
            self._syncer.join()
            self._syncer = None
        with self._lock:
            if self._fd >= 0 and _pid == self._pid:
                try:
                    _sync(self._fd)
                finally:
                    self._close_file()

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:  # it was not closed
            self._close_file()

    # ── internals ───────────────────────────────────────────────────────────────────────────────────

    def _reopen(self) -> None:
        self._closing.clear()
        self._fd = _open_locked(self.path)
        self._size = self._repair()

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _undo(self) -> None:
        os.ftruncate(self._fd, self._size)
        self._torn = False

    def _repair(self) -> int:
        """Make the file end with a whole line; its size then."""
        size = os.fstat(self._fd).st_size
        tail = _after_last_newline(self._fd, size)
        if not tail:
            return size
        try:
            parse(tail)
        except ValueError:
            torn = self.path.with_name(f"{self.path.name}.torn")
            with torn.open("ab") as file:
                file.write(tail + b"\n")
                file.flush()
                os.fsync(file.fileno())
            os.ftruncate(self._fd, size - len(tail))
            self.repairs.append(LineRepair(size - len(tail), len(tail), str(torn)))
            _warn("%s ended with half a line; its %d bytes were moved to %s.", self.path, len(tail), torn)
            return size - len(tail)
        os.write(self._fd, b"\n")  # only the newline was missing
        return size + 1

    def _find_head(self) -> int:
        head = 0
        self._rises = True
        for segment in segments(self.path):
            with contextlib.suppress(FileNotFoundError), segment.open("rb") as file:
                for line in file:
                    seq = quick_seq(line)
                    if seq is None or seq < head:
                        return self._find_head_slowly()
                    head = seq + 1
        return head

    def _find_head_slowly(self) -> int:
        self._rises = False
        entries, reading = read_entries(self.path)
        self.bad_lines = reading.bad_lines
        for bad in reading.bad_lines:
            _warn("%s. It is left as it is and skipped.", bad)
        if reading.renumbered:
            _warn("%s has seqs twice; %d entries are renumbered when read.", self.path, reading.renumbered)
        return entries[-1]["seq"] + 1 if entries else 0

    def _rotate(self) -> None:
        """Rename the file to the next number and open a new one; at every moment a locked file has the name."""
        numbers = [int(each.name.rpartition(".")[2]) for each in segments(self.path)[:-1]]
        fresh = self.path.with_name(f"{self.path.name}.new")
        fresh.unlink(missing_ok=True)
        fd = os.open(fresh, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | _BINARY, 0o644)
        try:
            lock_file(fd)
            _sync(self._fd)
            os.link(self.path, self.path.with_name(f"{self.path.name}.{max(numbers, default=0) + 1}"))
            fresh.replace(self.path)
            _sync_folder(self.path.parent)
        except BaseException:
            os.close(fd)
            raise
        self._close_file()
        self._fd, self._size = fd, 0
        if self._rotate_keep:
            for segment in segments(self.path)[: -1 - self._rotate_keep]:
                segment.unlink()

    def _sync_soon(self) -> None:
        if self._syncer is None:
            self._closing.clear()
            self._syncer = threading.Thread(target=self._sync_regularly, name="tape-fsync", daemon=True)
            self._syncer.start()
        if not self._unsynced.is_set():  # set() takes as long as writing the line
            self._unsynced.set()

    def _sync_regularly(self) -> None:
        while not self._closing.is_set():
            self._unsynced.wait()
            self._closing.wait(self._interval)
            self._unsynced.clear()
            try:
                with self._lock:
                    copy = os.dup(self._fd) if self._fd >= 0 else -1
                if copy >= 0:
                    try:
                        _sync(copy)  # without the lock, so that appends do not wait for the disk
                    finally:
                        os.close(copy)
            except OSError as error:
                self._sync_error = error  # raised by the next append
                self._unsynced.set()


_BINARY = getattr(os, "O_BINARY", 0)


def _open_locked(path: Path) -> int:
    """Open and lock the file. One that was replaced between opening and locking is opened again."""
    deadline = time.monotonic() + 5
    while True:
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | _BINARY, 0o644)
        try:
            lock_file(fd)
            if os.path.samestat(os.fstat(fd), path.stat()):
                return fd
        except BlockingIOError:
            os.close(fd)
            raise TapeFileInUse(
                f"{path} is being written by another process, or by another tape in this one. Give each tape a file"
                " of its own; to read this one, use SessionTape.load()."
            ) from None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        if time.monotonic() > deadline:
            raise TapeFileUnusable(f"{path} is replaced again and again and cannot be locked.")


def _after_last_newline(fd: int, size: int) -> bytes:
    tail = b""
    while size > 0:
        start = max(size - BLOCK, 0)
        os.lseek(fd, start, os.SEEK_SET)  # writes go to the end all the same
        block = os.read(fd, size - start)
        cut = block.rfind(b"\n")
        tail = block[cut + 1 :] + tail
        if cut >= 0:
            break
        size = start
    return tail


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not every system lets a folder be opened
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _warn(text: str, *values: object) -> None:
    import logging

    logging.getLogger("tape.session").warning(text, *values)
