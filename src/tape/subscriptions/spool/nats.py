"""Spool backend in NATS: one object store per area."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from tape.brokers.nats.connection import connect, import_nats
from tape.errors import SpoolUnavailable
from tape.subscriptions.spool.backend import Area, AreaSize, StoredObject

T = TypeVar("T")

_AT_ONCE = 32


class NatsBackend:
    """Object store `<bucket>` for live items, `<bucket>_<area>` for the others; created on first use."""

    def __init__(self, bucket: str, **connection: Any) -> None:
        nats = import_nats("A spool in NATS")
        self._errors, self._js_errors = nats.errors, nats.js.errors
        self._bucket = bucket
        self._options = connection
        self._connection: Any = None
        self._stream: Any = None
        self._stores: dict[Area, Any] = {}
        self._opening = asyncio.Lock()
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def put(self, area: Area, objects: Sequence[tuple[str, bytes]]) -> None:
        """Write objects; the stream has acknowledged each on return."""

        async def write(store: Any) -> None:
            async def one(key: str, data: bytes) -> None:
                async with self._slots:
                    await store.put(key, data)

            await asyncio.gather(*(one(*each) for each in objects))

        await self._translate_errors(area, write)

    async def get(self, area: Area, key: str) -> bytes | None:
        """The bytes of an object; None if it does not exist."""

        async def read(store: Any) -> bytes | None:
            try:
                info = await store.get_info(key)
                if info.chunks != 1:
                    return bytes((await store.get(key)).data or b"")
                # Read a single chunk directly: the client would create a consumer for each object.
                name = self._name(area)
                return bytes((await self._stream.get_last_msg(f"OBJ_{name}", f"$O.{name}.C.{info.nuid}")).data or b"")
            except (self._js_errors.ObjectNotFoundError, self._js_errors.NotFoundError):
                return None

        return await self._translate_errors(area, read)

    async def get_many(self, area: Area, keys: Sequence[str]) -> list[bytes | None]:
        """The bytes of several objects, read concurrently."""

        async def one(key: str) -> bytes | None:
            async with self._slots:
                return await self.get(area, key)

        return await asyncio.gather(*map(one, keys))

    async def page(self, area: Area, after: str, limit: int) -> list[StoredObject]:
        """The first objects after a key. NATS lists all keys each time."""

        every = await self._list(area)
        return sorted(StoredObject(each.name, each.size or 0) for each in every if each.name > after)[:limit]

    async def measure(self, area: Area) -> AreaSize:
        """The number of objects and their bytes."""
        found = AreaSize()
        for each in await self._list(area):
            found = found.with_object(each.name, each.size or 0)
        return found

    async def delete(self, area: Area, keys: Sequence[str]) -> None:
        """Remove objects."""

        async def remove(store: Any) -> None:
            async def one(key: str) -> None:
                async with self._slots:
                    with contextlib.suppress(self._js_errors.ObjectNotFoundError):
                        await store.delete(key)

            await asyncio.gather(*map(one, keys))

        await self._translate_errors(area, remove)

    async def claim(self) -> bool:
        """True: an object store has no lock."""
        return True

    async def release(self) -> None:
        """Nothing was claimed."""

    async def close(self) -> None:
        """Disconnect."""
        if self._connection is not None:
            await self._connection.close()
            self._connection = None
            self._stores.clear()

    def _name(self, area: Area) -> str:
        return self._bucket if area is Area.LIVE else f"{self._bucket}_{area.value}"

    async def _list(self, area: Area) -> list[Any]:
        async def read(store: Any) -> list[Any]:
            try:
                return list(await store.list(ignore_deletes=True))
            except self._js_errors.NotFoundError:
                return []

        return await self._translate_errors(area, read)

    async def _translate_errors(self, area: Area, work: Callable[[Any], Awaitable[T]]) -> T:
        try:
            return await work(await self._store(area))
        except (self._errors.Error, OSError, TimeoutError) as error:
            self._stores.pop(area, None)
            reason = str(error) or type(error).__name__
            raise SpoolUnavailable(f"The spool in NATS bucket {self._bucket} cannot be used: {reason}.") from error

    async def _store(self, area: Area) -> Any:
        async with self._opening:
            if self._connection is None or self._connection.is_closed:
                # By default the client reconnects for two minutes; the spool reports an outage after two seconds.
                self._connection = await connect(allow_reconnect=True, reconnect_time_wait=0.5, **self._options)
                self._stores.clear()
            if area not in self._stores:
                name = self._name(area)
                self._stream = self._connection.jetstream()
                try:
                    self._stores[area] = await self._stream.object_store(name)
                except self._js_errors.NotFoundError:
                    self._stores[area] = await self._stream.create_object_store(name)
            return self._stores[area]
