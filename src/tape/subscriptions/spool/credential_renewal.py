"""A spool backend whose credential can change: a failed operation is retried once with the newest credential."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from tape.errors import InvalidConfig, SpoolUnavailable, TapeError
from tape.subscriptions.document.spool_spec import SpoolSpec
from tape.subscriptions.spool.backend import Area, AreaSize, SpoolBackend, StoredObject
from tape.subscriptions.spool.locations import open_backend, spool_hosts

log = logging.getLogger(__name__)

T = TypeVar("T")

_ANSWER_S = 5.0


class RenewingBackend:
    """A spool backend that reads its credential again from the wallet when it is unavailable.

    It waits at most 5 s for the wallet: the spool must not depend on the server.
    """

    def __init__(
        self,
        spool: SpoolSpec,
        subscription: str,
        credential: Mapping[str, Any] | None,
        reveal: Callable[[str, Sequence[str]], Awaitable[Any]],
    ) -> None:
        self._spool = spool
        self._subscription = subscription
        self._credential = credential
        self._reveal = reveal
        self._backend = open_backend(spool, subscription, credential)
        self._renewing = asyncio.Lock()

    async def put(self, area: Area, objects: Sequence[tuple[str, bytes]]) -> None:
        """Write objects, replacing those of the same key; all are durable on return."""
        await self._with_renewal(lambda backend: backend.put(area, objects))

    async def get(self, area: Area, key: str) -> bytes | None:
        """The bytes of an object; None if it does not exist."""
        return await self._with_renewal(lambda backend: backend.get(area, key))

    async def get_many(self, area: Area, keys: Sequence[str]) -> list[bytes | None]:
        """The bytes of several objects in the order of the keys; None for each that does not exist."""
        return await self._with_renewal(lambda backend: backend.get_many(area, keys))

    async def page(self, area: Area, after: str, limit: int) -> list[StoredObject]:
        """The first `limit` objects with keys after `after`, in key order."""
        return await self._with_renewal(lambda backend: backend.page(area, after, limit))

    async def measure(self, area: Area) -> AreaSize:
        """The size of an area, from one listing."""
        return await self._with_renewal(lambda backend: backend.measure(area))

    async def delete(self, area: Area, keys: Sequence[str]) -> None:
        """Remove objects; missing ones are ignored."""
        await self._with_renewal(lambda backend: backend.delete(area, keys))

    async def claim(self) -> bool:
        """Whether this process may drain now."""
        return await self._with_renewal(lambda backend: backend.claim())

    async def release(self) -> None:
        """Release the claim."""
        await self._backend.release()

    async def close(self) -> None:
        """Close connections."""
        await self._backend.close()

    async def _with_renewal(self, work: Callable[[SpoolBackend], Awaitable[T]]) -> T:
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
                secret = await self._reveal(self._spool.credential, spool_hosts(self._spool))
                credential = fields_of(self._spool.credential, secret)
        except (TapeError, TimeoutError) as error:
            log.warning("The credential of the spool cannot be read: %s", str(error) or "timeout")
            return False
        if credential == self._credential:
            return False
        log.warning("The spool of %s uses a new credential.", self._subscription)
        old, self._backend = self._backend, open_backend(self._spool, self._subscription, credential)
        self._credential = credential
        await old.close()
        return True


def fields_of(alias: str, secret: Any) -> Mapping[str, Any]:
    """The fields of a spool's credential. Raises InvalidConfig if the secret is plain text."""
    if not isinstance(secret, Mapping):
        raise InvalidConfig(
            f"spool.credential {alias!r} is plain text in the wallet; a backend needs fields such as access_key_id or"
            f" url: `tape wallet set {alias} --json`."
        )
    return secret
