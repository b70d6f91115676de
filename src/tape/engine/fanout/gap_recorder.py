"""Gaps that readers of this server met: counted each time, logged and recorded once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from tape.base.retry import WHILE_UNAVAILABLE, Backoff, is_retryable
from tape.base.telemetry.metrics import Metrics
from tape.errors import TapeError
from tape.journal.damage import MAX_RANGES, count_damaged, record_damage
from tape.model.gap import JournalGap
from tape.store import Database

log = logging.getLogger(__name__)

# Ranges that one transaction records.
STEP = 100


class GapRecorder:
    """Records damage that readers meet. `run()` does so in the background: a reader never waits for it."""

    def __init__(self, database: Database, metrics: Metrics) -> None:
        self._database = database
        self._metrics = metrics
        # The ranges that this server has recorded or is about to. With 10,000 it only counts.
        self._known: set[JournalGap] = set()
        self._waiting: list[JournalGap] = []
        self._is_waiting = asyncio.Event()

    def record(self, gaps: Sequence[JournalGap]) -> None:
        """Count gaps that a reader met, and record those that this server has not met before."""
        for gap in gaps:
            self._metrics.journal_gaps.labels(gap.reason).inc()
        new = [gap for gap in gaps if gap.reason != "diverged" and gap not in self._known]
        del new[max(MAX_RANGES - len(self._known), 0) :]
        if not new:
            return
        self._known.update(new)
        self._waiting += new
        self._is_waiting.set()

    async def refresh(self) -> None:
        """Read how many entries are recorded as damaged, by any server."""
        self._metrics.damaged_entries.set(await self._database.read(count_damaged))

    async def run(self) -> None:
        """Record what readers meet, without end."""
        backoff = Backoff(WHILE_UNAVAILABLE)
        while True:
            await self._is_waiting.wait()
            gaps = self._waiting[:STEP]
            try:
                if new := await self._database.write(lambda tx: record_damage(tx, *gaps)):  # noqa: B023
                    log.error("the journal has %d new damaged ranges, the first is: %s", new, _describe(gaps[0]))
                    await self.refresh()
            except TapeError as error:
                if is_retryable(error):
                    log.warning("recording damage of the journal failed, retrying: %s", error)
                    await backoff.wait_async()
                    continue
                log.error("damage of the journal cannot be recorded (%s): %s", error, "; ".join(map(_describe, gaps)))
            del self._waiting[: len(gaps)]
            if not self._waiting:
                self._is_waiting.clear()
            backoff.reset()


def _describe(gap: JournalGap) -> str:
    return f"entries {gap.first} to {gap.last} are {gap.reason} ({gap.detail})"
