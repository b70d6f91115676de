"""Acknowledgement on completion (`dispatch.ack: on_completion`): a delivery is settled when its run has ended."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from tape.base.process import sleep_until_set
from tape.brokers import Delivery, Source
from tape.errors import SourceError, TapeError
from tape.model.run_outcome import MAX_OUTCOMES, RunOutcome
from tape.subscriptions.message import SourceMessage

log = logging.getLogger(__name__)

LOOK_S = 0.25
# How long a runtime that stops waits for its runs; messages whose runs go on are redelivered.
STOP_S = 2.0


class RunOutcomes(Protocol):
    """Reads how runs of a subscription have ended."""

    async def read(self, execution_ids: Sequence[int]) -> Mapping[int, RunOutcome]:
        """The outcomes of up to 1,000 runs by execution id; a run that does not exist is left out."""


class AwaitedDelivery(NamedTuple):
    """A delivery whose run has begun."""

    delivery: Delivery
    message: SourceMessage
    execution_id: int


Settle = Callable[[Sequence[AwaitedDelivery], Sequence[tuple[AwaitedDelivery, str]]], Awaitable[None]]


class Completions:
    """The deliveries of a runtime whose runs go on. Calls `settle` with those that completed and those that failed.

    Meanwhile the redelivery time of the source is renewed.
    """

    def __init__(self, path: str, source: Source, outcomes: RunOutcomes, settle: Settle) -> None:
        self._path = path
        self._source = source
        self._outcomes = outcomes
        self._settle = settle
        self._awaited: dict[str, AwaitedDelivery] = {}
        self._news = asyncio.Event()
        self._renewed_at = time.monotonic()

    def __len__(self) -> int:
        return len(self._awaited)

    def add(self, awaited: AwaitedDelivery) -> None:
        """Await the end of the run of a delivery."""
        if not self._awaited:
            self._renewed_at = time.monotonic()
        self._awaited[awaited.delivery.receipt] = awaited
        self._news.set()

    async def run(self) -> None:
        """Follow the runs until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._awaited:
                try:
                    await self._look()
                    await self._renew()
                except TapeError as error:
                    log.warning("%s: outcomes of runs cannot be followed, retrying: %s", self._path, error)
                except Exception:
                    # An unexpected error must not leave messages without an acknowledgement for ever.
                    log.exception("%s: following the outcomes of runs failed, retrying", self._path)
                await asyncio.sleep(LOOK_S)

    async def finish(self, *, is_draining: Callable[[], bool]) -> None:
        """Wait for the runs: all of them while the subscription drains, else for 2 s at most."""
        stop_at = time.monotonic() + STOP_S
        while self._awaited and (is_draining() or time.monotonic() < stop_at):
            await sleep_until_set(LOOK_S / 5, asyncio.Event())
        if self._awaited:
            log.warning("%s: %d messages are not acknowledged: their runs go on", self._path, len(self._awaited))

    async def _look(self) -> None:
        waiting = list(self._awaited.values())
        for start in range(0, len(waiting), MAX_OUTCOMES):
            some = waiting[start : start + MAX_OUTCOMES]
            found = await self._outcomes.read(list({each.execution_id for each in some}))
            completed: list[AwaitedDelivery] = []
            failed: list[tuple[AwaitedDelivery, str]] = []
            for each in some:
                outcome = found.get(each.execution_id, RunOutcome("failed", "the run does not exist"))
                if outcome.status == "completed":
                    completed.append(each)
                elif outcome.status == "failed":
                    failed.append((each, outcome.error))
            for each in (*completed, *(each for each, _ in failed)):
                self._awaited.pop(each.delivery.receipt, None)
            if completed or failed:
                await self._settle(completed, failed)

    async def _renew(self) -> None:
        every_s = self._source.renew_every_s
        if every_s is None or time.monotonic() - self._renewed_at < every_s:
            return
        self._renewed_at = time.monotonic()
        try:
            await self._source.renew(list(self._awaited))
        except SourceError as error:
            log.warning("%s: the redelivery time of %d messages is not renewed: %s", self._path, len(self), error)
