"""Spool backend in a folder: each object is a file, written under a temporary name, synced and renamed."""

from __future__ import annotations

import asyncio
import heapq
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from tape.base.file_lock import lock_file
from tape.base.ids import new_suffix
from tape.base.private_files import FILE_MODE, make_private_folder, open_private
from tape.errors import SpoolUnavailable
from tape.subscriptions.spool.backend import Area, AreaSize, StoredObject

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)

_SUFFIX = ".json"
_SCRATCH = ".tmp"
# A temporary file older than this belongs to a process that died while it wrote.
_ABANDONED_S = 3_600.0


class DiskBackend:
    """`<path>/<key>.json`; dead letters, quarantine and control files in folders of their own below it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock = -1
        # One thread writes and one reads. More are no faster, and each keeps its peak memory.
        self._threads = ThreadPoolExecutor(2, "tape-spool")

    async def put(self, area: Area, objects: Sequence[tuple[str, bytes]]) -> None:
        """Write objects; the files and the folder that names them are synced on return."""
        await self._in_thread(self._put, area, objects)

    async def get(self, area: Area, key: str) -> bytes | None:
        """The bytes of an object; None if there is no such file."""
        return await self._in_thread(self._get, area, key)

    async def get_many(self, area: Area, keys: Sequence[str]) -> list[bytes | None]:
        """The bytes of several objects; None for each whose file does not exist."""
        return await self._in_thread(self._get_many, area, keys)

    async def page(self, area: Area, after: str, limit: int) -> list[StoredObject]:
        """The first files after a key. Scans the folder without holding it in memory."""
        return await self._in_thread(self._page, area, after, limit)

    async def measure(self, area: Area) -> AreaSize:
        """The number of files and their bytes."""
        return await self._in_thread(self._measure, area)

    async def delete(self, area: Area, keys: Sequence[str]) -> None:
        """Remove files."""
        await self._in_thread(self._delete, area, keys)

    async def claim(self) -> bool:
        """Lock the folder for draining. The lock ends with `release` or with the process."""
        return await self._in_thread(self._claim)

    async def release(self) -> None:
        """Release the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    async def close(self) -> None:
        """Release the lock and end the threads."""
        await self.release()
        self._threads.shutdown(wait=False)

    async def _in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, partial(work, *args, **kwargs))
        except OSError as error:
            raise SpoolUnavailable(f"The spool folder {self.path} cannot be used: {error}.") from error

    def _folder(self, area: Area) -> Path:
        return self.path if area is Area.LIVE else self.path / area

    def _claim(self) -> bool:
        if self._lock < 0:
            folder = self._folder(Area.CONTROL)
            make_private_folder(folder)
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, FILE_MODE)
            try:
                lock_file(lock)
            except BlockingIOError:
                os.close(lock)
                return False
            self._lock = lock
            self._remove_abandoned()
        return True

    def _remove_abandoned(self) -> None:
        """Remove temporary files of processes that died. What they hold was never acknowledged."""
        before = time.time() - _ABANDONED_S
        for area in Area:
            for scratch in self._folder(area).glob(f".*{_SCRATCH}"):
                try:
                    if scratch.stat().st_mtime < before:
                        scratch.unlink()
                        log.warning("removed %s, which a process that ended left unfinished", scratch)
                except FileNotFoundError:
                    continue

    def _put(self, area: Area, objects: Sequence[tuple[str, bytes]]) -> None:
        folder = self._folder(area)
        make_private_folder(folder)
        scratches = []
        try:
            for key, data in objects:
                # A name of its own: other threads and processes can be writing the same key.
                scratch = folder / f".{key}.{new_suffix()}{_SCRATCH}"
                scratches.append(scratch)
                with open(scratch, "wb", opener=open_private) as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
            for (key, _), scratch in zip(objects, scratches, strict=True):
                scratch.replace(folder / f"{key}{_SUFFIX}")
        except OSError:
            for scratch in scratches:
                scratch.unlink(missing_ok=True)
            raise
        _sync_folder(folder)

    def _get(self, area: Area, key: str) -> bytes | None:
        try:
            return (self._folder(area) / f"{key}{_SUFFIX}").read_bytes()
        except FileNotFoundError:
            return None

    def _get_many(self, area: Area, keys: Sequence[str]) -> list[bytes | None]:
        return [self._get(area, key) for key in keys]

    def _page(self, area: Area, after: str, limit: int) -> list[StoredObject]:
        names = heapq.nsmallest(limit, (_key(entry) for entry in self._entries(area) if _key(entry) > after))
        folder = self._folder(area)
        found = []
        for key in names:
            try:
                found.append(StoredObject(key, (folder / f"{key}{_SUFFIX}").stat().st_size))
            except FileNotFoundError:
                continue  # replayed and deleted meanwhile
        return found

    def _measure(self, area: Area) -> AreaSize:
        found = AreaSize()
        for entry in self._entries(area):
            try:
                found = found.with_object(_key(entry), entry.stat().st_size)
            except FileNotFoundError:
                continue
        return found

    def _entries(self, area: Area) -> Iterator[os.DirEntry[str]]:
        try:
            entries = os.scandir(self._folder(area))
        except FileNotFoundError:
            return
        with entries:
            for entry in entries:
                if entry.name.endswith(_SUFFIX) and not entry.name.startswith("."):
                    yield entry

    def _delete(self, area: Area, keys: Sequence[str]) -> None:
        for key in keys:
            (self._folder(area) / f"{key}{_SUFFIX}").unlink(missing_ok=True)


def _key(entry: os.DirEntry[str]) -> str:
    return entry.name[: -len(_SUFFIX)]


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
