"""Which processes have a SQLite file open: servers share it, an embedded engine has it for itself.

The lock is on a file beside the database and ends with the process, also after kill -9. The file names the holders, so
that an error can say which process it is.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from pathlib import Path

import msgspec

from tape.base import structs
from tape.base.clock import now_ms
from tape.base.file_lock import lock_file, share_file
from tape.errors import StoreHeld, StoreUnavailable

SUFFIX = "-lock"
# Bytes of the file that are read: a file of another program is not shown whole.
MAX_BYTES = 64 << 10


class Holder(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process that has a store open: what it is, and how a client can reach it (empty if it cannot)."""

    program: str
    address: str = ""
    pid: int = msgspec.field(default_factory=os.getpid)
    host: str = msgspec.field(default_factory=socket.gethostname)
    since_ms: int = msgspec.field(default_factory=now_ms)

    def __str__(self) -> str:
        return f"{self.program} with pid {self.pid} on {self.host}"

    @property
    def may_live(self) -> bool:
        """Whether the process can still exist; False if this host has no process with its pid."""
        if self.host != socket.gethostname():
            return True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:  # it belongs to another user
            return True
        return True


class ProcessLock:
    """The lock of one store. `release`, or the end of the process, lets others have it."""

    def __init__(self, store: Path, holder: Holder, *, exclusive: bool) -> None:
        self._store = store
        self._path = store.with_name(store.name + SUFFIX)
        self._holder = holder
        self._is_exclusive = exclusive
        self._fd: int | None = None

    def acquire(self) -> None:
        """Lock the store. StoreHeld, which names the holder, if another process has it."""
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise StoreUnavailable(
                f"{self._path} cannot be opened ({error}). Check that the folder of the store exists and is writable."
            ) from error
        try:
            self._lock(fd)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def _lock(self, fd: int) -> None:
        try:
            (lock_file if self._is_exclusive else share_file)(fd)
        except BlockingIOError:
            raise self._held() from None
        if self._is_exclusive or os.fstat(fd).st_size > MAX_BYTES // 4:
            os.ftruncate(fd, 0)  # those that the file names have ended, or began long ago
        os.write(fd, msgspec.json.encode(self._holder) + b"\n")

    def release(self) -> None:
        """Let other processes have the store. Idempotent. A forked process that calls it leaves its parent the lock."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _held(self) -> StoreHeld:
        holders = [holder for holder in _read(self._path) if holder.may_live]
        return StoreHeld(self._explain(holders))

    def _explain(self, holders: list[Holder]) -> str:
        names = " and ".join(map(str, holders[:-4:-1])) or "another process, which has not written its name yet"
        held = f"{self._store} is open in {names} (lock file {self._path})."
        address = next((holder.address for holder in reversed(holders) if holder.address), "")
        if address:
            return f"{held} Use that server: give its address {address} as the URL. Or stop it."
        if not self._is_exclusive:
            return f"{held} It has no server: stop that process, then start this one."
        return (
            f"{held} A store without a server belongs to one process at a time: stop that one, or let both use a"
            f" server: tape serve --store sqlite:{self._store}"
        )


def _read(path: Path) -> Iterable[Holder]:
    try:
        with path.open("rb") as file:
            lines = file.read(MAX_BYTES).splitlines()
    except OSError:
        return
    for line in lines:
        try:
            yield structs.decode(line, Holder)
        except msgspec.MsgspecError:
            continue
