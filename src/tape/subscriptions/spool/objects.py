"""Spool backend in a bucket: S3, Google Cloud Storage, Azure or memory, through obstore."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any, TypeVar

from tape.errors import MissingExtra, SpoolUnavailable
from tape.subscriptions.spool.backend import Area, AreaSize, StoredObject

T = TypeVar("T")

_AT_ONCE = 32


class BucketBackend:
    """`<prefix>/spool/<key>`, dead letters under `<prefix>/dlq/`. The bucket must exist."""

    def __init__(self, store: Any, prefix: str, name: str) -> None:
        try:
            self._obstore = importlib.import_module("obstore")
            self._error: type[Exception] = importlib.import_module("obstore.exceptions").BaseError
        except ImportError as error:
            raise MissingExtra("A spool in a bucket", "objects") from error
        self._store = store
        self._prefix = prefix.strip("/")
        self._name = name
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def put(self, area: Area, objects: Sequence[tuple[str, bytes]]) -> None:
        """Write objects, several at a time; the store has all of them on return."""

        async def write(key: str, data: bytes) -> None:
            async with self._slots:
                await self._translate_errors(self._obstore.put_async(self._store, self._path(area, key), data))

        for failed in await asyncio.gather(*(write(*each) for each in objects), return_exceptions=True):
            if failed is not None:
                raise failed

    async def get(self, area: Area, key: str) -> bytes | None:
        """The bytes of an object; None if it does not exist."""
        try:
            found = await self._translate_errors(self._obstore.get_async(self._store, self._path(area, key)))
            return bytes(await self._translate_errors(found.bytes_async()))
        except FileNotFoundError:
            return None

    async def get_many(self, area: Area, keys: Sequence[str]) -> list[bytes | None]:
        """The bytes of several objects, read concurrently."""

        async def one(key: str) -> bytes | None:
            async with self._slots:
                return await self.get(area, key)

        return await asyncio.gather(*map(one, keys))

    async def page(self, area: Area, after: str, limit: int) -> list[StoredObject]:
        """The first objects after a key; the store lists in key order."""
        found: list[StoredObject] = []
        async for some in self._chunks(area, after):
            found += some
            if len(found) >= limit and self._lists_in_order:
                break
        return sorted(found)[:limit]

    async def measure(self, area: Area) -> AreaSize:
        """The number of objects and their bytes."""
        found = AreaSize()
        async for some in self._chunks(area, ""):
            for stored in some:
                found = found.with_object(*stored)
        return found

    async def delete(self, area: Area, keys: Sequence[str]) -> None:
        """Remove objects."""
        if not keys:
            return
        try:
            await self._translate_errors(
                self._obstore.delete_async(self._store, [self._path(area, key) for key in keys])
            )
        except FileNotFoundError:
            pass

    async def claim(self) -> bool:
        """True: a bucket has no lock."""
        return True

    async def release(self) -> None:
        """Nothing was claimed."""

    async def close(self) -> None:
        """Nothing to close: the library manages its connections."""

    @property
    def _lists_in_order(self) -> bool:
        return type(self._store).__name__ != "MemoryStore"

    def _path(self, area: Area, key: str) -> str:
        return "/".join(part for part in (self._prefix, area.value) if part) + f"/{key}"

    async def _chunks(self, area: Area, after: str) -> AsyncIterator[list[StoredObject]]:
        folder = self._path(area, "")
        try:
            stream = self._obstore.list(self._store, folder, offset=folder + after if after else None, chunk_size=1000)
            async for chunk in stream:
                yield [StoredObject(each["path"][len(folder) :], each["size"]) for each in chunk]
        except self._error as error:
            raise self._unavailable(error) from error

    async def _translate_errors(self, work: Awaitable[T]) -> T:
        try:
            return await work
        except FileNotFoundError:
            raise
        except self._error as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> SpoolUnavailable:
        # The library's messages can have many lines with the request; the first line has the cause.
        return SpoolUnavailable(f"The spool in {self._name} cannot be used: {str(error).splitlines()[0]}.")
