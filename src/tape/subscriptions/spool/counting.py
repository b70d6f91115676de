"""What Prometheus is told of spools and circuits: counted from the same events that the journal gets."""

from __future__ import annotations

from collections.abc import Sequence

from tape.subscriptions.events import Event
from tape.telemetry.metrics import Metrics


class SpoolCounts:
    """The counters and gauges of one subscription's spool. Several of one kind of source add up."""

    def __init__(self, metrics: Metrics, source: str) -> None:
        self._metrics = metrics
        self._source = source
        self._items = 0
        self._bytes = 0

    def see(self, events: Sequence[Event]) -> None:
        """Count what happened."""
        for event in events:
            match event.event_type:
                case "subscription.message.spooled":
                    self._metrics.spooled.labels(self._source).inc()
                case "subscription.message.dead_lettered":
                    self._metrics.dead_lettered.labels(self._source).inc()
                case "subscription.circuit.opened" | "subscription.circuit.closed":
                    transition = event.event_type.rpartition(".")[2]
                    self._metrics.circuit_transitions.labels(event.context["downstream"], transition).inc()

    def size(self, items: int, size_bytes: int) -> None:
        """Show how much waits now."""
        self._metrics.spool_items.labels(self._source).inc(items - self._items)
        self._metrics.spool_bytes.labels(self._source).inc(size_bytes - self._bytes)
        self._items, self._bytes = items, size_bytes
