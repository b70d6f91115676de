"""Entries as CloudEvents 1.0, with the extensions `sequence`, `recordedtime`, `partitionkey` and `traceparent`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from tape.base.telemetry.tracing import Trace, to_traceparent
from tape.model.entry import Entry
from tape.model.subject import decode
from tape.server.http.frames import moment

BATCH = "application/cloudevents-batch+json"


def to_batch(entries: Sequence[Entry]) -> bytes:
    """A JSON batch. `source` (the tenant) and `id` (the global_seq) identify an entry permanently."""
    return msgspec.json.encode([_event(entry) for entry in entries])


def _event(entry: Entry) -> dict[str, Any]:
    written = moment(entry.ts_ms)
    keys = entry.subject.split("/")[4:]
    event: dict[str, Any] = {
        "specversion": "1.0",
        "id": str(entry.global_seq),
        "source": f"/tape/{quote(entry.tenant, safe='')}",
        "type": entry.type,
        "time": written,
        "datacontenttype": "application/json",
        "data": msgspec.Raw(entry.payload_json.encode()),
        "sequence": f"{entry.global_seq:020d}",
        "recordedtime": written,
        "partitionkey": entry.run_id,
    }
    if keys:
        event["subject"] = "/".join(map(decode, keys))
    if entry.trace_id and entry.span_id:
        event["traceparent"] = to_traceparent(Trace(entry.trace_id, entry.span_id))
    return event
