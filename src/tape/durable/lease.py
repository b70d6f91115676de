"""A run's lease, renewed in the background for as long as this process executes the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tape.base.lease import LeaseRenewer
from tape.errors import IllegalTransition, LeaseHeld

DEFAULT_TTL_MS = 120_000


class RunLease(LeaseRenewer):
    """Renews the lease of a run. Stop it before the run parks at a gate: a late renewal would resume the run.

    `on_lost` gets the error by which the server refuses a renewal: another process has the run, or it was ended.
    """

    def __init__(
        self,
        client: Any,
        run_id: str,
        owner: str,
        ttl_ms: int,
        *,
        leased_at: float | None = None,
        on_lost: Callable[[LeaseHeld | IllegalTransition], None] | None = None,
    ) -> None:
        super().__init__(
            self._resume,
            ttl_ms,
            name=f"lease on run {run_id}",
            thread_name=f"tape-lease-{run_id[:8]}",
            leased_at=leased_at,
        )
        self.owner = owner
        self._client = client
        self._run_id = run_id
        self._on_lost = on_lost

    def _resume(self) -> bool:
        try:
            self._client.resume_run(run_id=self._run_id, lease_owner=self.owner, lease_ttl_ms=self.ttl_ms, renew=True)
        except (LeaseHeld, IllegalTransition) as error:
            if self._on_lost is not None:
                self._on_lost(error)
            return False
        return True
