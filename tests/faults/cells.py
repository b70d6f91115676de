"""The cells of the fault matrix: source, mode, ordering, spool backend, database; and their documents."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

PATH = "subscriptions/orders"
POOL = "shop"
SECRET_ALIAS = "orders_secret"
SPOOL_ALIAS = "spool_location"


@dataclass(frozen=True)
class Cell:
    """One field of the matrix."""

    source: Literal["nats", "kafka", "webhook"]
    mode: Literal["off", "buffer_and_ack", "hybrid"]
    ordering: Literal["global", "per_key", "none"]
    backend: Literal["local_disk", "nats_object", "s3"] = "local_disk"
    store: Literal["sqlite", "postgres"] = "sqlite"
    dedup: bool = True
    probed: bool = False  # an active probe of the downstream, or the outcome of dispatches alone

    def __str__(self) -> str:
        more = [self.backend.split("_")[0], self.store, "dedup" if self.dedup else "twice"]
        return "-".join([self.source, self.mode, self.ordering, *more, *(["probed"] if self.probed else [])])

    @property
    def is_strict(self) -> bool:
        """Whether the order of sending is the order of receipt, whatever is killed.

        Kafka keeps the order of a partition, and a sender of webhooks waits for each answer. NATS delivers again what a
        killed reader had, after what was sent since.
        """
        return self.mode != "off" and self.source != "nats"


def document(cell: Cell, connection: dict[str, Any], location: dict[str, Any], probe_url: str, **spool: Any) -> str:
    """The subscription of a cell. Timers are short, so that a few seconds see every transition."""
    downstream = [{"name": POOL, "type": "http", "target": probe_url}] if cell.probed else []
    circuit = {"trip_after": 2, "probe_after_ms": 100, "probe_interval_ms": 150, "downstream": downstream}
    spec: dict[str, Any] = {
        "source": cell.source,
        **connection,
        "dispatch": {"playbook": "domain/ingest", "execution_pool": POOL},
        "dedup": {"enabled": cell.dedup},
        "spool": {"mode": cell.mode, "ordering": cell.ordering, "ordering_key": "key", "circuit": circuit, **spool},
    }
    if cell.mode != "off":
        spec["spool"] |= {"backend": cell.backend, **location}
    if cell.mode == "hybrid":
        spec["spool"]["hybrid_escalate_after_ms"] = 250
    if cell.source != "webhook":
        spec |= {"mode": "pull", "runtime": {"batch": 10, "timeout_ms": 200}}
    return json.dumps({"kind": "Subscription", "metadata": {"path": PATH}, "spec": spec})
