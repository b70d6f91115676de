"""The leases of the runs that a worker is at: renewed together, for as long as each run takes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tape.client import AsyncTapeClient
from tape.errors import LeaseHeld, TapeError

log = logging.getLogger(__name__)

# A lease is renewed when a third of it is over: two attempts may fail. Most runs are over before that.
RENEWALS_PER_LEASE = 3


class Leases:
    """Renews what is kept. Use as an async context manager."""

    def __init__(self, client: AsyncTapeClient, lease_ms: int) -> None:
        self._client = client
        self._lease_ms = lease_ms
        self._kept: dict[tuple[str, str], float] = {}
        self._renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Leases:
        self._renewing = asyncio.create_task(self._renew())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._renewing is not None
        self._renewing.cancel()
        await asyncio.gather(self._renewing, return_exceptions=True)

    @contextmanager
    def keep(self, run_id: str, owner: str) -> Iterator[None]:
        """Renew a lease that this owner has while the block lasts."""
        self._kept[run_id, owner] = time.monotonic()
        try:
            yield
        finally:
            self._kept.pop((run_id, owner), None)

    async def _renew(self) -> None:
        share_s = self._lease_ms / 1_000 / RENEWALS_PER_LEASE
        while True:
            await asyncio.sleep(share_s / 2)
            now = time.monotonic()
            due = [place for place, since in self._kept.items() if now - since >= share_s]
            await asyncio.gather(*(self._renew_one(*place) for place in due))

    async def _renew_one(self, run_id: str, owner: str) -> None:
        asked_at = time.monotonic()
        try:
            await self._client.resume_run(run_id=run_id, lease_owner=owner, lease_ttl_ms=self._lease_ms, renew=True)
        except LeaseHeld as error:
            log.warning("the lease on run %s is lost: %s", run_id, error)  # its next step will be told
            self._kept.pop((run_id, owner), None)
        except TapeError as error:  # also if it is not taken yet, or the run is ending just now
            log.info("the lease on run %s was not renewed: %s", run_id, error)
        else:
            if (run_id, owner) in self._kept:
                self._kept[run_id, owner] = asked_at
