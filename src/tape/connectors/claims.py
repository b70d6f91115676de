"""A claim that is kept for as long as the work takes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from tape.errors import TapeError

log = logging.getLogger(__name__)


class KeptClaim:
    """Renews a claim three times within its life while a `with` block runs; `holds()` says whether it still counts.

    It counts by this machine's clock: a process that was stopped for longer than the claim lasts knows so at once.
    """

    def __init__(self, renew: Callable[[], bool], ttl_ms: int, *, claimed_at: float) -> None:
        self._renew = renew
        self._ttl_s = ttl_ms / 1000
        self._held_until = claimed_at + self._ttl_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="tape-claim", daemon=True)

    def __enter__(self) -> KeptClaim:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def holds(self) -> bool:
        """Whether nobody else can have the claim by now."""
        return time.monotonic() < self._held_until

    def _keep(self) -> None:
        while not self._done.wait(self._ttl_s / 3):
            asked_at = time.monotonic()
            try:
                is_renewed = self._renew()
            except TapeError as error:
                log.info("a claim was not renewed: %s", error)
                continue
            if not is_renewed:
                self._held_until = 0.0
                return
            self._held_until = asked_at + self._ttl_s
