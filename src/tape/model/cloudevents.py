"""An entry as a CloudEvent 1.0 with the extensions `sequence`, `recordedtime`, `partitionkey` and `traceparent`."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any

import msgspec

from tape.base.telemetry.tracing import Trace, to_traceparent
from tape.model.entry import type_of
from tape.model.subject import decode

STRUCTURED = "application/cloudevents+json"
BATCHED = "application/cloudevents-batch+json"


def to_cloudevent(entry: Any, *, event_id: str, source: str) -> dict[str, Any]:
    """The attributes and the data of an entry, ready to be encoded as JSON. `source` and `event_id` identify it."""
    written = format_time(entry.ts_ms)
    dimensions = entry.subject.split("/")[4:]
    event: dict[str, Any] = {
        "specversion": "1.0",
        "id": event_id,
        "source": source,
        "type": type_of(entry.kind, entry.subject),
        "time": written,
        "datacontenttype": "application/json",
        "data": msgspec.Raw((entry.payload_json or "null").encode()),
        "sequence": f"{entry.global_seq:020d}",
        "recordedtime": written,
        "partitionkey": entry.run_id,
    }
    if dimensions:
        event["subject"] = "/".join(map(decode, dimensions))
    if entry.trace_id and entry.span_id:
        event["traceparent"] = to_traceparent(Trace(entry.trace_id, entry.span_id))
    return event


@lru_cache(maxsize=4096)
def format_time(ts_ms: int) -> str:
    """A time in UTC as RFC 3339 with nine fractional digits."""
    second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(ts_ms // 1000))
    return f"{second}.{ts_ms % 1000:03d}000000Z"
