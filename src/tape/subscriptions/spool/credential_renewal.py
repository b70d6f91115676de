"""A place whose credential may change while it is used: what was refused is tried again with the newest one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from tape.errors import InvalidConfig, SpoolUnavailable, TapeError
from tape.subscriptions.document.spool_spec import SpoolSpec
from tape.subscriptions.spool.backend import Area, AreaSize, SpoolBackend, StoredObject
from tape.subscriptions.spool.locations import open_backend

log = logging.getLogger(__name__)

T = TypeVar("T")

_ANSWER_S = 5.0


class RenewingBackend:
    """The place of a spool. When it cannot be used, the wallet is asked whether there is another credential by now.

    A server that does not answer within five seconds leaves things as they are: a spool must not wait for it.
    """

    def __init__(
        self,
        spool: SpoolSpec,
        subscription: str,
        credential: Mapping[str, Any] | None,
        reveal: Callable[[str], Awaitable[Any]],
    ) -> None:
        self._spool = spool
        self._subscription = subscription
        self._credential = credential
        self._reveal = reveal
        self._backend = open_backend(spool, subscription, credential)
        self._renewing = asyncio.Lock()

    async def put(self, area: Area, objects: Sequence[tuple[str, bytes]]) -> None:
        """Write objects, replacing those of the same key; all are durable on return."""
        await self._tried(lambda backend: backend.put(area, objects))

    async def get(self, area: Area, key: str) -> bytes | None:
        """An object's bytes; None if there is no such object."""
        return await self._tried(lambda backend: backend.get(area, key))

    async def get_many(self, area: Area, keys: Sequence[str]) -> list[bytes | None]:
        """Several objects' bytes, in the order of the keys; None for each that is not there."""
        return await self._tried(lambda backend: backend.get_many(area, keys))

    async def page(self, area: Area, after: str, limit: int) -> list[StoredObject]:
        """The first objects whose key comes after another, in the order of their keys."""
        return await self._tried(lambda backend: backend.page(area, after, limit))

    async def measure(self, area: Area) -> AreaSize:
        """How much an area holds, from one listing."""
        return await self._tried(lambda backend: backend.measure(area))

    async def delete(self, area: Area, keys: Sequence[str]) -> None:
        """Remove objects; it is no error if one is gone already."""
        await self._tried(lambda backend: backend.delete(area, keys))

    async def claim(self) -> bool:
        """Whether this process may drain now."""
        return await self._tried(lambda backend: backend.claim())

    async def release(self) -> None:
        """Let another process drain."""
        await self._backend.release()

    async def close(self) -> None:
        """Let go of connections."""
        await self._backend.close()

    async def _tried(self, work: Callable[[SpoolBackend], Awaitable[T]]) -> T:
        backend = self._backend
        try:
            return await work(backend)
        except SpoolUnavailable:
            async with self._renewing:
                if self._backend is backend and not await self._is_renewed():
                    raise
        return await work(self._backend)

    async def _is_renewed(self) -> bool:
        try:
            async with asyncio.timeout(_ANSWER_S):
                credential = fields_of(self._spool.credential, await self._reveal(self._spool.credential))
        except (TapeError, TimeoutError) as error:
            log.warning("The credential of a spool cannot be looked at: %s", str(error) or "no answer")
            return False
        if credential == self._credential:
            return False
        log.warning("The spool of %s has another credential now.", self._subscription)
        old, self._backend = self._backend, open_backend(self._spool, self._subscription, credential)
        self._credential = credential
        await old.close()
        return True


def fields_of(alias: str, secret: Any) -> Mapping[str, Any]:
    """The fields of a spool's credential; says so where a secret is plain text."""
    if not isinstance(secret, Mapping):
        raise InvalidConfig(
            f"spool.credential {alias!r} is plain text in the wallet; a place needs fields such as access_key_id or"
            f" url: `tape wallet set {alias} --json`."
        )
    return secret
