"""The columns of an entry as Arrow has them: its fields, its `type`, and its time as a timestamp."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

TYPES: dict[str, pa.DataType] = {
    "global_seq": pa.int64(),
    "run_id": pa.string(),
    "seq": pa.int64(),
    "kind": pa.string(),
    "type": pa.string(),
    "subject": pa.string(),
    "payload_json": pa.string(),
    "schema_version": pa.int32(),
    "trace_id": pa.string(),
    "span_id": pa.string(),
    "parent_span_id": pa.string(),
    "ts_ms": pa.int64(),
    "ts": pa.timestamp("us", "UTC"),
    "tenant": pa.string(),
    "user": pa.string(),
    "session": pa.string(),
    "chain": pa.binary(),
}


def arrow_schema(names: Iterable[str]) -> pa.Schema:
    """The columns of these names."""
    return pa.schema([pa.field(name, TYPES[name]) for name in names])
