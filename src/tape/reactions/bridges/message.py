"""An entry as a message of any broker."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote

import msgspec

from tape.base.telemetry.tracing import current_trace, to_traceparent
from tape.reactions.envelope import Envelope

EVENT_ID = "tape-event-id"


class Message(NamedTuple):
    """What is published: the entry as JSON, its run to keep its order by, and headers that name it."""

    run_id: str
    body: bytes
    headers: dict[str, str]

    @property
    def event_id(self) -> str:
        """What a receiver knows the entry by."""
        return self.headers[EVENT_ID]


def message_of(envelope: Envelope) -> Message:
    """The message of an entry. It belongs to the span that it is made in."""
    body = {
        "run_id": envelope.run_id,
        "seq": envelope.seq,
        "kind": envelope.kind,
        "payload_json": envelope.payload_json,
        "ts_ms": envelope.ts_ms,
        "global_seq": envelope.global_seq,
        "subject": envelope.subject,
        "schema_version": envelope.schema_version,
    }
    headers = {
        EVENT_ID: _plain(envelope.event_id),
        "tape-subject": envelope.subject,
        "tape-reaction-id": _plain(envelope.reaction_id),
    }
    trace = current_trace()
    if trace.trace_id:
        headers["traceparent"] = to_traceparent(trace)
    return Message(envelope.run_id, msgspec.json.encode(body), headers)


def _plain(text: str) -> str:
    """A text that no header can be broken with: control characters are percent-encoded."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else quote(char) for char in text)
