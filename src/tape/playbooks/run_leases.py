"""The leases of the runs that a worker executes, renewed for as long as each run takes."""

from __future__ import annotations

from tape.base.lease import AsyncLeaseRenewer
from tape.client import AsyncTapeClient
from tape.errors import LeaseHeld


class RunLeases(AsyncLeaseRenewer[tuple[str, str]]):
    """Renews leases by run id and owner. Most runs end before their first renewal."""

    def __init__(self, client: AsyncTapeClient, lease_ms: int) -> None:
        super().__init__(self._resume, lease_ms, name="lease on run")
        self._client = client

    async def _resume(self, key: tuple[str, str]) -> bool:
        run_id, owner = key
        try:
            await self._client.resume_run(run_id=run_id, lease_owner=owner, lease_ttl_ms=self.ttl_ms, renew=True)
        except LeaseHeld:
            return False  # the next step of the run fails with that error
        return True
