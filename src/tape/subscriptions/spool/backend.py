"""The port of spool backends: a folder, a bucket, a NATS object store."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol


class Area(StrEnum):
    """The areas of a spool: live items, dead letters, quarantined items, control objects."""

    LIVE = "spool"
    DEAD = "dlq"
    QUARANTINE = "quarantine"
    CONTROL = "control"


class StoredObject(NamedTuple):
    """An object in a listing."""

    key: str
    size: int


class AreaSize(NamedTuple):
    """The size of an area: objects, bytes, and the last key."""

    items: int = 0
    size: int = 0
    last: str = ""

    def with_object(self, key: str, size: int) -> AreaSize:
        """The size with one more object."""
        return AreaSize(self.items + 1, self.size + size, max(self.last, key))


class SpoolBackend(Protocol):
    """Objects by area and key. After `put` returns they survive a crash; none is ever read half-written."""

    async def put(self, area: Area, objects: Sequence[tuple[str, bytes]]) -> None:
        """Write objects, replacing those of the same key; all are durable on return."""

    async def get(self, area: Area, key: str) -> bytes | None:
        """The bytes of an object; None if it does not exist."""

    async def get_many(self, area: Area, keys: Sequence[str]) -> list[bytes | None]:
        """The bytes of several objects in the order of the keys; None for each that does not exist."""

    async def page(self, area: Area, after: str, limit: int) -> list[StoredObject]:
        """The first `limit` objects with keys after `after`, in key order."""

    async def measure(self, area: Area) -> AreaSize:
        """The size of an area, from one listing."""

    async def delete(self, area: Area, keys: Sequence[str]) -> None:
        """Remove objects; missing ones are ignored."""

    async def claim(self) -> bool:
        """Whether this process may drain now. A backend without locks returns True: replays are deduplicated."""

    async def release(self) -> None:
        """Release the claim."""

    async def close(self) -> None:
        """Close connections."""
