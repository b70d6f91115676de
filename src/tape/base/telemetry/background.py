"""Background tasks under supervision: one that fails is restarted, counted, logged and named in the readiness."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable

from prometheus_client import Counter

from tape.base.retry import WHILE_UNAVAILABLE, Backoff

log = logging.getLogger(__name__)

# A restarted task that has run for so long counts as well again.
STABLE_S = 10.0


class BackgroundTasks:
    """The tasks that must run as long as the process does."""

    def __init__(self, restarts: Counter) -> None:
        self._restarts = restarts
        self._failures: dict[str, tuple[float, str]] = {}

    @property
    def problems(self) -> list[str]:
        """The tasks that failed within the last 10 seconds, each with its error."""
        now = time.monotonic()
        self._failures = {name: found for name, found in self._failures.items() if now - found[0] < STABLE_S}
        return [f"{name}: {error}" for name, (_, error) in sorted(self._failures.items())]

    async def supervise(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run a task until it returns or is cancelled; after an error run it again, with growing pauses."""
        backoff = Backoff(WHILE_UNAVAILABLE)
        while True:
            started = time.monotonic()
            try:
                await work()
            except Exception as error:
                if time.monotonic() - started >= STABLE_S:
                    backoff.reset()
                # One traceback for a series of failures.
                log.error(
                    "the background task %r failed, restarting: %s", name, error, exc_info=name not in self._failures
                )
                self._failures[name] = time.monotonic(), f"{type(error).__name__}: {error}"
                self._restarts.labels(name).inc()
                await backoff.wait_async()
            else:
                return
