"""From the relay's hands into the sink's: what was taken, what is set aside, what is left."""

from __future__ import annotations

import time
from typing import Any, Protocol

from tape.errors import SinkHeldBack, SinkRejected
from tape.sinks.metrics import RelayMetrics


class Asides(Protocol):
    """Who takes what a sink never will, unless it is blocking."""

    @property
    def policy(self) -> str:
        """Its name, for the counts."""

    @property
    def is_blocking(self) -> bool:
        """Whether entries stay in their place."""

    def take(self, entry: Any, error: Exception) -> None:
        """Set an entry aside."""


class HandOver:
    """Gives entries to a sink, all at once where it takes batches."""

    def __init__(self, sink: Any, aside: Asides, metrics: RelayMetrics) -> None:
        self._sink = sink
        self._aside = aside
        self._metrics = metrics

    def give(self, entries: list[Any]) -> tuple[Exception | None, list[Any]]:
        """Publish entries. What is left, in its order, and why."""
        left = entries
        while left:
            began = time.perf_counter()
            outcomes = self._publish(left)
            self._metrics.seconds.observe(time.perf_counter() - began)
            self._metrics.was_published(sum(outcome is None for outcome in outcomes))
            reason: Exception | None = None
            waiting = []
            for entry, outcome in zip(left, outcomes, strict=True):
                if outcome is None:
                    continue
                if isinstance(outcome, SinkRejected) and not self._aside.is_blocking:
                    try:
                        self._aside.take(entry, outcome)
                    except Exception as error:  # nowhere to put it: it stays, and is tried again
                        outcome = error
                    else:
                        self._metrics.was_set_aside(self._aside.policy)
                        continue
                waiting.append(entry)
                if reason is None and not isinstance(outcome, SinkHeldBack):
                    reason = outcome
            left = waiting
            if reason is not None:
                return reason, left
        return None, left

    def _publish(self, entries: list[Any]) -> list[Exception | None]:
        """What became of each entry. What a sink buffers counts as published once it is flushed."""
        batch = getattr(self._sink, "publish_batch", None)
        outcomes = batch(entries) if batch is not None else self._one_by_one(entries)
        flush = getattr(self._sink, "flush", None)
        if flush is not None:
            try:
                flush()
            except Exception as error:
                getattr(self._sink, "discard", lambda: None)()
                return [error, *(SinkHeldBack(entry, entries[0]) for entry in entries[1:])]
        return outcomes

    def _one_by_one(self, entries: list[Any]) -> list[Exception | None]:
        outcomes: list[Exception | None] = []
        for entry in entries:
            try:
                self._sink.publish(entry)
            except Exception as error:
                held = entries[len(outcomes) + 1 :]
                return [*outcomes, error, *(SinkHeldBack(each, entry) for each in held)]
            outcomes.append(None)
        return outcomes
