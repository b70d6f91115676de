"""A run's lease, renewed in the background for as long as this process executes the run."""

from __future__ import annotations

import logging
import threading
from typing import Any

from tape.errors import IllegalTransition, LeaseHeld, TapeError

log = logging.getLogger(__name__)

DEFAULT_TTL_MS = 120_000
_LEAST_PAUSE_S = 0.1


class Lease:
    """Renews a lease three times within its life. A renewal that cannot be made is made up for later."""

    def __init__(self, client: Any, run_id: str, owner: str, ttl_ms: int) -> None:
        self.owner = owner
        self.ttl_ms = ttl_ms
        self._client = client
        self._run_id = run_id
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def keep(self) -> None:
        """Begin to renew."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._renew, name=f"tape-lease-{self._run_id[:8]}", daemon=True)
        self._thread.start()

    def let_go(self) -> None:
        """Stop renewing; when this returns, no renewal is on its way.

        A run that parks at a gate gives its lease up: a late renewal would wake it.
        """
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._thread = None

    def give_up(self) -> None:
        """Stop renewing, without waiting for a renewal that is on its way."""
        self._stop.set()

    def _renew(self) -> None:
        while not self._stop.wait(max(self.ttl_ms / 3000, _LEAST_PAUSE_S)):
            try:
                self._client.resume_run(
                    run_id=self._run_id, lease_owner=self.owner, lease_ttl_ms=self.ttl_ms, renew=True
                )
            except (LeaseHeld, IllegalTransition) as error:
                # Another process has the run, or it was ended: the next call for the run fails with that error.
                log.warning("the lease on run %s is lost: %s", self._run_id, error)
                return
            except TapeError as error:
                log.info("the lease on run %s was not renewed: %s", self._run_id, error)
