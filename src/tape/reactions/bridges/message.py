"""The message that a bridge publishes for a task."""

from __future__ import annotations

from tape.model.message import BodyFormat, Message, TenantEntry, to_header, to_message
from tape.proto import tape_pb2 as pb
from tape.reactions.envelope import Envelope

REACTION_ID = "tape-reaction-id"


def message_of(envelope: Envelope, body_format: BodyFormat = "standard") -> Message:
    """The message of the entry that a task is about, as sinks send it, and the reaction in a header.

    Several reactions may publish an entry into one stream, so the stream deduplicates by entry and reaction.
    """
    entry = entry_of(envelope)
    message = to_message(TenantEntry(entry) if envelope.tenant else entry, body_format)
    reaction_id = to_header(envelope.reaction_id)
    return message._replace(
        headers={**message.headers, REACTION_ID: reaction_id},
        deduplication_id=f"{message.event_id}@{reaction_id}",
    )


def entry_of(envelope: Envelope) -> pb.EventEntry:
    """The entry of an envelope. A task has the span of its entry as its parent."""
    return pb.EventEntry(
        run_id=envelope.run_id,
        seq=envelope.seq,
        kind=envelope.kind,
        payload_json=envelope.payload_json,
        ts_ms=envelope.ts_ms,
        global_seq=envelope.global_seq,
        subject=envelope.subject,
        schema_version=envelope.schema_version,
        trace_id=envelope.trace_id,
        span_id=envelope.parent_span_id,
        tenant=envelope.tenant,
    )
