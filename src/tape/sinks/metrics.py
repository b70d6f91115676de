"""Metrics of a relay, for Prometheus and for its status line."""

from __future__ import annotations

import time
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60)


@dataclass(frozen=True, slots=True)
class RelayStatus:
    """The state of a relay. `lag` is the number of entries of the journal that it has not read yet."""

    position: int = 0
    head: int = 0
    published: int = 0
    retries: int = 0
    rejected: int = 0
    rate: float = 0.0
    error: str = ""
    gaps: int = 0

    @property
    def lag(self) -> int:
        """Entries of the journal after the position."""
        return max(self.head - self.position, 0)

    def __str__(self) -> str:
        line = f"at {self.position:,} of {self.head:,} (lag {self.lag:,}), {self.published:,} published"
        line += f" ({self.rate:,.0f}/s), {self.retries:,} retries, {self.rejected:,} rejected"
        line += f", {self.gaps:,} gaps" if self.gaps else ""
        return f"{line}; waiting: {self.error}" if self.error else line


class RelayMetrics:
    """The metrics of one relay, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.published = Counter("tape_relay_published", "Entries that the sink has accepted", registry=registry)
        self.retries = Counter("tape_relay_retries", "Batches that failed and were retried", registry=registry)
        self.skipped = Counter("tape_relay_skipped", "Entries skipped by the policy skip", registry=registry)
        self.dead_letters = Counter("tape_relay_dead_letters", "Entries written as dead letters", registry=registry)
        self.gaps = Counter("tape_relay_gaps", "Gaps of the journal, by reason", ["reason"], registry=registry)
        self.position = Gauge(
            "tape_relay_position", "global_seq up to which everything is published", registry=registry
        )
        self.lag = Gauge("tape_relay_lag_entries", "Entries of the journal after the position", registry=registry)
        self.seconds = Histogram(
            "tape_relay_hand_over_seconds", "Time to publish a batch", buckets=_SECONDS, registry=registry
        )
        self._published = self._retries = self._rejected = self._gaps = 0
        self._position = self._head = 0
        self._error = ""
        self._rate = 0.0
        self._rated = (time.monotonic(), 0)

    @property
    def status(self) -> RelayStatus:
        """The current values."""
        now = time.monotonic()
        since, before = self._rated
        if now - since >= 1.0:
            self._rate = (self._published - before) / (now - since)
            self._rated = (now, self._published)
        return RelayStatus(
            self._position,
            self._head,
            self._published,
            self._retries,
            self._rejected,
            self._rate,
            self._error,
            self._gaps,
        )

    def count_published(self, count: int) -> None:
        """The sink has accepted entries."""
        self._published += count
        self._error = ""
        self.published.inc(count)

    def count_retry(self, error: Exception) -> None:
        """A batch failed and will be retried."""
        self._retries += 1
        self._error = str(error)
        self.retries.inc()

    def count_rejected(self, policy: str) -> None:
        """An entry was skipped or became a dead letter."""
        self._rejected += 1
        (self.dead_letters if policy == "dead_letter" else self.skipped).inc()

    def count_gap(self, reason: str) -> None:
        """The journal has no entry to publish for some numbers."""
        self._gaps += 1
        self.gaps.labels(reason).inc()

    def set_position(self, position: int, head: int) -> None:
        """Everything up to a position is published."""
        self._position, self._head = position, max(head, position)
        self.position.set(position)
        self.lag.set(self._head - position)
