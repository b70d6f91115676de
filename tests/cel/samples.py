"""The entry that the tests of predicates look at."""

from __future__ import annotations

import json
from typing import Any

from tape.cel import EntryView
from tape.model.entry import Entry

PAYLOAD: dict[str, Any] = {
    "a": 1,
    "d": 1.5,
    "s": "hé😀",
    "l": [1, 2, 3],
    "n": None,
    "t": True,
    "m": {"k": "v"},
    "big": 9223372036854775807,
}


def entry(payload: Any = None, **fields: Any) -> Entry:
    """An entry of an effect; `payload` is put into JSON unless it is text already."""
    shown = payload if isinstance(payload, str) else json.dumps(PAYLOAD if payload is None else payload)
    values: dict[str, Any] = {
        "global_seq": 7,
        "run_id": "r",
        "seq": 3,
        "kind": "effect",
        "subject": "/tape/effect/confirmed/x",
        "payload_json": shown,
        "schema_version": 1,
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "span_id": "",
        "parent_span_id": "",
        "ts_ms": 1_700_000_000_000,
        "tenant": "acme",
        "user": "ann",
        "session": "s1",
        "chain": b"",
    }
    return Entry(**{**values, **fields})


def envelope(payload: Any = None, **fields: Any) -> EntryView:
    """The same in an envelope."""
    return EntryView(entry(payload, **fields))
