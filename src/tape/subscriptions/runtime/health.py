"""Health of a remote runtime: whether it lives, and whether server, source and spool can be used."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from tape.subscriptions.runtime.runtime import Runtime

BEAT_S = 1.0
# An event loop that has not run for so long is stuck: a restart is the remedy.
STUCK_S = 60.0
# A server that has not answered for so long counts as unreachable, although the request has not failed yet.
SILENT_S = 10.0


class RuntimeHealth:
    """What a remote runtime knows of its server, source and spool. Read by the threads of the health server."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.runtime: Runtime | None = None
        self.is_stopping = False
        # Why the runtime cannot be assembled, such as a secret that is not set; empty if it can.
        self.configuration_problem = ""
        self._clock = clock
        self._beat_at = clock()
        self._server_problem = "not reached yet"
        self._answered_at = clock()

    def server_answered(self) -> None:
        """The server has answered a request."""
        self._answered_at = self._clock()
        self._server_problem = ""

    def server_failed(self, error: BaseException) -> None:
        """A request to the server has failed."""
        self._server_problem = str(error)

    async def beat(self) -> None:
        """Show every second that the event loop runs, until cancelled."""
        while True:
            self._beat_at = self._clock()
            await asyncio.sleep(BEAT_S)

    def not_alive(self) -> dict[str, str]:
        """Why the process needs a restart; empty if it does not."""
        silent_s = self._clock() - self._beat_at
        return {"event_loop": f"has not run for {silent_s:.0f} s"} if silent_s > STUCK_S else {}

    def not_ready(self) -> dict[str, str]:
        """Why no messages are fetched, dispatched or kept now, by what has the problem; empty if all is well."""
        found = dict(self.not_alive())
        if self.is_stopping:
            found["runtime"] = "stopping"
        if problem := self._server_state():
            found["server"] = problem
        runtime = self.runtime
        if problem := self.configuration_problem or (runtime.configuration_problem if runtime else ""):
            found["configuration"] = problem
        if runtime is None:
            found.setdefault("runtime", "starting")
            return found
        if problem := runtime.source_problem:
            found["source"] = problem
        if problem := runtime.spool_problem:
            found["spool"] = problem
        return found

    def backlog(self) -> dict[str, int]:
        """Messages that wait: at the source where it reports them, in flight, and in the spool; and their sum."""
        runtime = self.runtime
        parts = {"source_lag": 0, "in_flight": 0, "spooled": 0}
        if runtime is not None:
            parts = {
                "source_lag": runtime.source_lag or 0,
                "in_flight": runtime.limiter.in_flight,
                "spooled": runtime.waiting,
            }
        return {**parts, "backlog": sum(parts.values())}

    def _server_state(self) -> str:
        silent_s = self._clock() - self._answered_at
        if not self._server_problem and silent_s > SILENT_S:
            return f"has not answered for {silent_s:.0f} s"
        return self._server_problem
