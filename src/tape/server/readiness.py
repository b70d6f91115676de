"""Readiness: whether this server can do its work now, found out by a real read and a real write."""

from __future__ import annotations

import asyncio
import time

from tape.base.telemetry.background import BackgroundTasks
from tape.errors import TapeError
from tape.journal.appender import read_head
from tape.store import Database, Transaction

# A result is kept for this long, however often it is asked for.
KEEP_S = 2.0
PING_TIMEOUT_S = 5.0


class Readiness:
    """Reads the head row and writes it as it is, at most every two seconds, and looks at the background tasks."""

    def __init__(self, database: Database, background: BackgroundTasks) -> None:
        self._database = database
        self._background = background
        self._ping: asyncio.Task[str] | None = None
        self._pinged_at = 0.0

    async def problem(self) -> str:
        """Why the server is not ready; empty if it is."""
        if problem := await self._store_problem():
            return f"store ping failed: {problem}"
        return "; ".join(f"background task failed: {problem}" for problem in self._background.problems)

    @property
    def warnings(self) -> list[str]:
        """What does not keep the server from its work, and should be put right."""
        return [f"witness: {problem}" for problem in self._database.witness.problems]

    async def close(self) -> None:
        """End a ping that is still waiting."""
        if self._ping is not None:
            self._ping.cancel()
            await asyncio.gather(self._ping, return_exceptions=True)

    async def _store_problem(self) -> str:
        is_due = time.monotonic() - self._pinged_at >= KEEP_S
        if self._ping is None or (self._ping.done() and is_due):
            self._pinged_at = time.monotonic()
            self._ping = asyncio.create_task(self._ping_store())
        # One ping at a time: while the store stands still, further callers wait for the same one.
        done, _ = await asyncio.wait((self._ping,), timeout=PING_TIMEOUT_S)
        return self._ping.result() if done else f"no answer for {PING_TIMEOUT_S:.0f} s"

    async def _ping_store(self) -> str:
        try:
            await self._database.read(read_head)
            await self._database.write(_touch_head)
        except TapeError as error:
            return str(error)
        return ""


def _touch_head(tx: Transaction) -> None:
    tx.execute("UPDATE tape_head SET id = id WHERE id = 1")
