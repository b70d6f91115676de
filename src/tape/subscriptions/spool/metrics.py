"""Prometheus metrics of spools and circuits, counted from the events that go to the journal."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from tape.base.clock import now_ms
from tape.base.telemetry.metrics import Metrics
from tape.subscriptions.events import SubscriptionEvent
from tape.subscriptions.spool.spool import Spool


class SpoolCounts:
    """The counters of one subscription's messages, and the gauges of its spool while it is open."""

    def __init__(self, metrics: Metrics, source: str, subscription: str) -> None:
        self._metrics = metrics
        self._source = source
        self._labels = (source, subscription)

    def see(self, events: Sequence[SubscriptionEvent]) -> None:
        """Count events."""
        for event in events:
            match event.event_type:
                case "subscription.message.spooled":
                    self._metrics.spooled.labels(self._source).inc()
                case "subscription.message.replayed":
                    self._metrics.replayed.labels(self._source).inc()
                case "subscription.message.dead_lettered":
                    self._metrics.dead_lettered.labels(self._source).inc()
                case "subscription.message.dropped":
                    self._metrics.dropped.labels(self._source, event.context["reason"]).inc()
                case "subscription.spool.quarantined":
                    self._metrics.quarantined.labels(self._source).inc()
                case "subscription.circuit.opened" | "subscription.circuit.closed":
                    transition = event.event_type.rpartition(".")[2]
                    self._metrics.circuit_transitions.labels(event.context["downstream"], transition).inc()

    def count_unwritten(self) -> None:
        """Count a write of circuit states or events that failed and is retried."""
        self._metrics.control_unwritten.labels(self._source).inc()

    def watch(self, spool: Spool) -> None:
        """Report the size of the spool and the age of its oldest message at each scrape."""

        def oldest_s() -> float:
            return 0.0 if spool.oldest_ms is None else max(0, now_ms() - spool.oldest_ms) / 1_000

        self._metrics.spool_items.labels(*self._labels).set_function(lambda: spool.items)
        self._metrics.spool_bytes.labels(*self._labels).set_function(lambda: spool.size_bytes)
        self._metrics.spool_oldest.labels(*self._labels).set_function(oldest_s)

    def forget(self) -> None:
        """Remove the gauges of a closed spool."""
        for gauge in (self._metrics.spool_items, self._metrics.spool_bytes, self._metrics.spool_oldest):
            with contextlib.suppress(KeyError):
                gauge.remove(*self._labels)
