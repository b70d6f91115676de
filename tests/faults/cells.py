"""The cells of the fault matrix: source, mode, ordering, spool backend, database; and their documents."""

from __future__ import annotations

import json
from collections.abc import Collection
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
    probed: bool = False  # a declared probe of the downstream, or the outcomes of runs alone

    def __str__(self) -> str:
        more = [self.backend.split("_")[0], self.store, "dedup" if self.dedup else "twice"]
        return "-".join([self.source, self.mode, self.ordering, *more, *(["probed"] if self.probed else [])])

    def is_strict(self, died: Collection[str]) -> bool:
        """Whether the order of sending is the order of receipt, given who was killed or paused.

        Kafka keeps the order of a partition, and a sender of webhooks waits for each answer. NATS redelivers messages
        that were not acknowledged after newer ones: it keeps the order only while every message is acknowledged.
        """
        return self.source != "nats" or (
            self.mode == "buffer_and_ack" and not {"server", "runtime", "broker"} & {*died}
        )


def document(cell: Cell, connection: dict[str, Any], location: dict[str, Any], target: str, **spool: Any) -> str:
    """The subscription of a cell, with the documented defaults: 5 failures, a message as the probe after 30 s.

    A declared probe is that of the how-to, a TCP connection every 5 s. Only `hybrid` begins to buffer after 2 s instead
    of 30 s, so that an outage of some seconds has both its parts.
    """
    circuit = {"downstream": [{"name": POOL, "type": "tcp", "target": target}]} if cell.probed else {}
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
        spec["spool"]["hybrid_escalate_after_ms"] = 2_000
    if cell.source != "webhook":
        spec |= {"mode": "pull"}
    return json.dumps({"kind": "Subscription", "metadata": {"path": PATH}, "spec": spec})
