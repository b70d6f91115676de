"""Conversion of google-adk's events to records of Tape and back, without loss."""

from __future__ import annotations

import json
from typing import Any

from google.adk.events.event import Event

from tape.proto import tape_pb2 as pb

# The key of an event's other fields within its actions: a record has fields for content and actions only.
_REST = "tape.event"
_COLUMNS = ("id", "invocation_id", "author", "branch")


def to_record(event: Event) -> pb.EventRecord:
    """An event as the server keeps it."""
    rest: dict[str, Any] = json.loads(event.model_dump_json(exclude_none=True))
    content, actions = rest.pop("content", None), rest.pop("actions", {})
    columns = {name: rest.pop(name, "") for name in _COLUMNS}
    return pb.EventRecord(
        **columns,
        content_json=json.dumps(content) if content is not None else "",
        actions_json=json.dumps({**actions, _REST: rest}),
        timestamp_ms=int(event.timestamp * 1000),
    )


def from_record(record: pb.EventRecord) -> Event:
    """The event that a record keeps; records of other clients may lack fields."""
    actions: dict[str, Any] = json.loads(record.actions_json or "{}")
    fields: dict[str, Any] = {"timestamp": record.timestamp_ms / 1000, **actions.pop(_REST, {})}
    fields |= {name: getattr(record, name) for name in _COLUMNS if getattr(record, name)}
    fields["actions"] = actions
    if record.content_json:
        fields["content"] = json.loads(record.content_json)
    # Through JSON, because bytes are encoded as base64.
    return Event.model_validate_json(json.dumps(fields))
