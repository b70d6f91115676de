"""Where spooled messages lie: a small port that a folder, a bucket and a NATS object store all fit."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol


class Area(StrEnum):
    """The parts of a spool: what waits, what was given up, what is damaged, and what is kept besides."""

    LIVE = "spool"
    DEAD = "dlq"
    QUARANTINE = "quarantine"
    CONTROL = "control"


class StoredObject(NamedTuple):
    """An object as a listing shows it."""

    key: str
    size: int


class AreaSize(NamedTuple):
    """How much an area holds: objects, their bytes, and the last of their keys."""

    items: int = 0
    size: int = 0
    last: str = ""

    def with_object(self, key: str, size: int) -> AreaSize:
        """This, and one more."""
        return AreaSize(self.items + 1, self.size + size, max(self.last, key))


class SpoolBackend(Protocol):
    """Objects by area and key. What `put` has returned from survives a crash and is never seen half-written."""

    async def put(self, area: Area, objects: Sequence[tuple[str, bytes]]) -> None:
        """Write objects, replacing those of the same key; all are durable on return."""

    async def get(self, area: Area, key: str) -> bytes | None:
        """An object's bytes; None if there is no such object."""

    async def get_many(self, area: Area, keys: Sequence[str]) -> list[bytes | None]:
        """Several objects' bytes, in the order of the keys; None for each that is not there."""

    async def page(self, area: Area, after: str, limit: int) -> list[StoredObject]:
        """The first objects whose key comes after another, in the order of their keys."""

    async def measure(self, area: Area) -> AreaSize:
        """How much an area holds, from one listing."""

    async def delete(self, area: Area, keys: Sequence[str]) -> None:
        """Remove objects; it is no error if one is gone already."""

    async def claim(self) -> bool:
        """Whether this process may drain now. A place that cannot tell says yes: a replay is recognized anyway."""

    async def release(self) -> None:
        """Let another process drain."""

    async def close(self) -> None:
        """Let go of connections."""
