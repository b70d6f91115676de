"""Publishes batches of entries to a sink, and passes rejected entries on as dead letters."""

from __future__ import annotations

import time
from typing import Any, Protocol

from tape.errors import SinkHeldBack, SinkRejected
from tape.sinks.metrics import RelayMetrics


class DeadLetterBuffer(Protocol):
    """Accepts entries that the sink has rejected for good, unless it is blocking."""

    @property
    def policy(self) -> str:
        """The name of the policy, for the metrics."""

    @property
    def is_blocking(self) -> bool:
        """Whether a rejected entry is retried, and later entries wait for it."""

    def dead_letter(self, entry: Any, error: Exception) -> None:
        """Skip an entry or store it as a dead letter."""


class BatchPublisher:
    """Publishes entries to a sink, all at once if it accepts batches."""

    def __init__(self, sink: Any, dead_letters: DeadLetterBuffer, metrics: RelayMetrics) -> None:
        self._sink = sink
        self._dead_letters = dead_letters
        self._metrics = metrics

    def publish(self, entries: list[Any]) -> tuple[Exception | None, list[Any]]:
        """Publish entries; the first error, and the entries that are left, in their order."""
        left = entries
        while left:
            started = time.perf_counter()
            outcomes = self._publish(left)
            self._metrics.seconds.observe(time.perf_counter() - started)
            self._metrics.count_published(sum(outcome is None for outcome in outcomes))
            first_error: Exception | None = None
            remaining = []
            for entry, outcome in zip(left, outcomes, strict=True):
                error = self._settle(entry, outcome)
                if error is None:
                    continue
                remaining.append(entry)
                if first_error is None and not isinstance(error, SinkHeldBack):
                    first_error = error
            left = remaining
            if first_error is not None:
                return first_error, left
        return None, left

    def _settle(self, entry: Any, outcome: Exception | None) -> Exception | None:
        """Pass a rejected entry on as a dead letter; the error for which an entry has to be published again."""
        if not isinstance(outcome, SinkRejected) or self._dead_letters.is_blocking:
            return outcome
        try:
            self._dead_letters.dead_letter(entry, outcome)
        except Exception as error:  # the entry stays and is retried
            return error
        self._metrics.count_rejected(self._dead_letters.policy)
        return None

    def _publish(self, entries: list[Any]) -> list[Exception | None]:
        """The outcome of each entry. Entries that a sink buffers count as published once it is flushed."""
        batch = getattr(self._sink, "publish_batch", None)
        outcomes = batch(entries) if batch is not None else self._publish_one_by_one(entries)
        flush = getattr(self._sink, "flush", None)
        if flush is not None:
            try:
                flush()
            except Exception as error:
                getattr(self._sink, "discard", lambda: None)()
                return [error, *(SinkHeldBack(entry, entries[0]) for entry in entries[1:])]
        return outcomes

    def _publish_one_by_one(self, entries: list[Any]) -> list[Exception | None]:
        outcomes: list[Exception | None] = []
        for entry in entries:
            try:
                self._sink.publish(entry)
            except Exception as error:
                later = entries[len(outcomes) + 1 :]
                return [*outcomes, error, *(SinkHeldBack(each, entry) for each in later)]
            outcomes.append(None)
        return outcomes
