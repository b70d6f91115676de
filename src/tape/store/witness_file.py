"""A witness in a file: the last acknowledged entry, outside of the database.

The file has two slots, each with a checksum, that are written in turns, so that a torn write leaves the other one. It
is written before an append is acknowledged, which survives the process, and flushed to the disk within 100 ms, which
survives the machine. Each process has a file of its own (`-witness`, `-witness-2` …), which it keeps locked, so that
none writes an older entry over a newer one of another process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

from tape.base.file_lock import lock_file
from tape.base.private_files import FILE_MODE, make_private_folder
from tape.errors import InvalidConfig, StoreError
from tape.store.tail import Tail

log = logging.getLogger(__name__)

FLUSH_S = 0.1
# Seconds after which a file that could not be written is tried again.
RETRY_S = 10.0
# Files for processes that share a database at the same time.
MAX_FILES = 64
# A slot has a sector of its own.
SLOT_BYTES = 512
MAGIC = b"TapeWit1"

_CONTENT = struct.Struct(">8s32sqq32s")
_CHECKSUM = struct.Struct(">I")
_sync = getattr(os, "fdatasync", os.fsync)


class WitnessFile:
    """The witness of this process in a file. `record` is called on the writer's thread, the rest by one caller."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self.problem = ""
        self._path = path
        self._tail: Tail | None = None
        self._fd = -1
        self._own = path
        self._slot = 0
        self._lock = threading.Lock()
        self._is_dirty = threading.Event()
        self._is_closing = threading.Event()
        self._thread: threading.Thread | None = None

    def last_known(self, journal_id: str) -> list[Tail]:
        """The tails of a journal in the files of all processes."""
        return [tail for tail in self.tails() if tail.journal_id == journal_id]

    def tails(self) -> list[Tail]:
        """The tails in the files of all processes, of any journal."""
        found = [_read(path) for path in self._paths() if path.exists()]
        return [tail for tail in found if tail is not None]

    def begin(self, tail: Tail) -> None:
        """Record the tail durably, and from now on what comes after it. Files of other journals are renamed."""
        self._tail = tail
        self._claim()
        if self._fd >= 0:
            self._delete_others(tail)
        self._thread = threading.Thread(target=self._flush_until_closed, name="tape-witness", daemon=True)
        self._thread.start()

    def record(self, tail: Tail) -> None:
        """Write the tail, so that it survives the end of this process; the disk has it within 100 ms."""
        with self._lock:
            self._tail = tail
            if self._fd >= 0:
                try:
                    self._write(tail)
                except OSError as error:
                    self._fail(error)
        if not self._is_dirty.is_set():
            self._is_dirty.set()

    def close(self) -> None:
        """Flush and unlock the file."""
        if self._thread is None:
            return
        self._is_closing.set()
        self._is_dirty.set()
        self._thread.join()
        self._thread = None
        with self._lock:
            self._release()

    def _paths(self) -> Iterator[Path]:
        yield self._path
        for number in range(2, MAX_FILES + 1):
            yield self._path.with_name(f"{self._path.name}-{number}")

    def _claim(self) -> None:
        """Lock the first file that no other process has, and write the last known tail to it."""
        assert self._tail is not None
        with self._lock:
            try:
                make_private_folder(self._path.parent)
                for path in self._paths():
                    if self._claim_file(path, self._tail.journal_id):
                        break
                else:
                    raise OSError(f"{MAX_FILES} processes use the database")
                self._write(self._tail)
                _sync(self._fd)
                _sync_folder(self._path.parent)
            except OSError as error:
                self._fail(error)
            else:
                self.problem = ""

    def _claim_file(self, path: Path, journal_id: str) -> bool:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)
        try:
            lock_file(fd)
        except BlockingIOError:
            os.close(fd)
            return False
        try:
            if not _is_same_file(path, fd):  # another process removed it meanwhile
                os.close(fd)
                return self._claim_file(path, journal_id)
            if os.fstat(fd).st_size:
                found = _read(path)
                if found is None or found.journal_id != journal_id:
                    _rename(path, found)
                    os.close(fd)
                    return self._claim_file(path, journal_id)
            else:
                os.ftruncate(fd, 2 * SLOT_BYTES)
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(fd)
            raise
        self._fd, self._own, self._slot = fd, path, 0
        return True

    def _write(self, tail: Tail) -> None:
        content = _CONTENT.pack(MAGIC, tail.journal_id.encode(), tail.epoch, tail.global_seq, tail.chain)
        _write_at(self._fd, content + _CHECKSUM.pack(crc32(content)), self._slot * SLOT_BYTES)
        self._slot ^= 1

    def _delete_others(self, tail: Tail) -> None:
        """Delete the files of processes that have ended: the file of this one knows all that they knew."""
        for path in self._paths():
            if path == self._own or not path.exists():
                continue
            with contextlib.suppress(OSError, StoreError, InvalidConfig):
                fd = os.open(path, os.O_RDWR)
                try:
                    lock_file(fd)
                    found = _read(path)
                    if found is not None and found.journal_id == tail.journal_id and found.order <= tail.order:
                        path.unlink()
                finally:
                    os.close(fd)

    def _flush_until_closed(self) -> None:
        while not self._is_closing.is_set():
            self._is_dirty.wait(None if self._fd >= 0 else RETRY_S)
            self._is_dirty.clear()
            self._flush()
            self._is_closing.wait(FLUSH_S if self._fd >= 0 else RETRY_S)

    def _flush(self) -> None:
        with self._lock:
            if self._fd >= 0 and not _is_same_file(self._own, self._fd):
                log.warning("the witness %s was removed or replaced; it is written again", self._own)
                self._release()
            fd = self._fd
        if fd < 0:
            self._claim()
            return
        try:
            _sync(fd)  # without the lock: the writer goes on meanwhile
        except OSError as error:
            with self._lock:
                self._fail(error)

    def _fail(self, error: OSError) -> None:
        if not self.problem:
            log.warning("the witness %s cannot be written (%s): a cut journal may go unnoticed", self._own, error)
        self.problem = f"{self._own} cannot be written: {error}"
        self._release()

    def _release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _read(path: Path) -> Tail | None:
    """The newest valid slot; None for a new or damaged file. Raises InvalidConfig for a file of another kind."""
    try:
        content = path.read_bytes()[: 2 * SLOT_BYTES]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"The witness {path} cannot be read: {error.strerror}.") from error
    slots = [content[start : start + SLOT_BYTES] for start in (0, SLOT_BYTES)]
    if any(slot.strip(b"\0") for slot in slots) and not any(slot.startswith(MAGIC) for slot in slots):
        raise InvalidConfig(f"{path} is not a witness file; set witness to another path, or remove the file.")
    tails = [tail for tail in map(_decode, slots) if tail is not None]
    return max(tails, key=lambda tail: tail.order, default=None)


def _decode(slot: bytes) -> Tail | None:
    content = slot[: _CONTENT.size]
    if slot[_CONTENT.size : _CONTENT.size + _CHECKSUM.size] != _CHECKSUM.pack(crc32(content)) or len(slot) < SLOT_BYTES:
        return None
    magic, journal_id, epoch, global_seq, chain = _CONTENT.unpack(content)
    if magic != MAGIC:
        return None
    return Tail(journal_id.rstrip(b"\0").decode("ascii", "replace"), epoch, global_seq, chain)


def _rename(path: Path, found: Tail | None) -> None:
    """Rename a file that knows another journal, or nothing."""
    if found is None:
        target = path.with_name(f"{path.name}.damaged")
        log.warning("the witness %s is damaged; it is now %s", path, target)
    else:
        target = path.with_name(f"{path.name}.{found.journal_id[:8]}.old")
        log.warning(
            "the witness %s is of another journal (%s, which ended at entry %d or later); it is now %s",
            path,
            found.journal_id,
            found.global_seq,
            target,
        )
    path.replace(target)


def _is_same_file(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except OSError:
        return False


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # pragma: no cover - Windows has no such thing
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_at(fd: int, content: bytes, offset: int) -> None:
    if os.name == "nt":  # pragma: no cover - Windows has no pwrite
        os.lseek(fd, offset, os.SEEK_SET)
        os.write(fd, content)
    else:
        os.pwrite(fd, content, offset)
