"""Lists of entries as batches of CloudEvents 1.0."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

import msgspec

from tape.model.cloudevents import to_cloudevent
from tape.model.entry import Entry


def to_batch(entries: Sequence[Entry]) -> bytes:
    """A JSON batch. `source` is the journal of the tenant and `id` the `global_seq`: together they are unique."""
    return msgspec.json.encode(
        [
            to_cloudevent(entry, event_id=str(entry.global_seq), source=f"/tape/{quote(entry.tenant, safe='')}")
            for entry in entries
        ]
    )
