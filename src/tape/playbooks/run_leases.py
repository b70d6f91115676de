"""The leases of the runs that a worker executes, renewed for as long as each run takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tape.base.lease import AsyncLeaseRenewer
from tape.client import AsyncTapeClient
from tape.errors import LeaseHeld


class RunLeases(AsyncLeaseRenewer[tuple[str, str]]):
    """Renews leases by run id and owner. Most runs end before their first renewal."""

    def __init__(self, client: AsyncTapeClient, lease_ms: int) -> None:
        super().__init__(self._resume, lease_ms, name="lease on run")
        self._client = client
        self._has_lease: dict[tuple[str, str], Callable[[], bool]] = {}

    @contextmanager
    def keep_while(self, key: tuple[str, str], has_lease: Callable[[], bool]) -> Iterator[None]:
        """Renew the lease of a run within the block, while there is one."""
        self._has_lease[key] = has_lease
        try:
            with self.keep(key):
                yield
        finally:
            del self._has_lease[key]

    async def _resume(self, key: tuple[str, str]) -> bool:
        run_id, owner = key
        if not self._has_lease[key]():
            return True
        try:
            await self._client.resume_run(run_id=run_id, lease_owner=owner, lease_ttl_ms=self.ttl_ms, renew=True)
        except LeaseHeld:
            return False  # the next step of the run fails with that error
        return True
