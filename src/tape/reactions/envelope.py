"""The argument of a handler: the entry that triggered it, and its task."""

from __future__ import annotations

from typing import Any

import msgspec

from tape.errors import NeverRetry
from tape.model.subject import kind_of
from tape.proto import tape_pb2 as pb


class Envelope(msgspec.Struct, frozen=True):
    """An entry as predicates see it (`global_seq` to `trace_id`, its payload parsed), and its task.

    Fields can be read as attributes or by name: `envelope.subject` is `envelope["subject"]`. An entry may be
    redelivered: `event_id` is the same each time, in every reaction.
    """

    global_seq: int
    run_id: str
    seq: int
    kind: str
    subject: str
    ts_ms: int
    schema_version: int
    payload: Any
    payload_json: str
    trace_id: str
    parent_span_id: str
    task_id: str
    reaction_id: str
    shard: int
    attempt: int
    last_error: str
    coalesced: int
    # The tenant of the entry, if the dispatcher gets those of several tenants of a server with keys.
    tenant: str = ""

    @property
    def event_id(self) -> str:
        """`<run_id>/<seq>`, with a tenant `<tenant>:<run_id>/<seq>`: identifies the entry outside of this journal."""
        return entry_id(self.tenant, self.run_id, self.seq)

    def __getitem__(self, name: str) -> Any:
        if name not in self.__struct_fields__:
            raise KeyError(name)
        return getattr(self, name)


def entry_id(tenant: str, run_id: str, seq: int) -> str:
    """The id of an entry outside of its journal."""
    return f"{tenant}:{run_id}/{seq}" if tenant else f"{run_id}/{seq}"


def open_envelope(task: pb.Task) -> Envelope:
    """The envelope of a task. Raises NeverRetry if the payload cannot be parsed."""
    try:
        payload = msgspec.json.decode(task.payload_json) if task.payload_json else None
    except (msgspec.DecodeError, RecursionError) as error:
        raise NeverRetry(f"the payload of entry {task.source_global_seq} cannot be parsed: {error}") from error
    return Envelope(
        global_seq=task.source_global_seq,
        run_id=task.source_run_id,
        seq=task.source_seq,
        kind=kind_of(task.subject),
        subject=task.subject,
        ts_ms=task.source_ts_ms or task.created_at_ms,
        schema_version=task.schema_version or 1,
        payload=payload,
        payload_json=task.payload_json,
        trace_id=task.trace_id,
        parent_span_id=task.parent_span_id,
        task_id=task.task_id,
        reaction_id=task.reaction_id,
        shard=task.shard,
        attempt=task.attempts,
        last_error=task.last_error,
        coalesced=task.coalesced,
        tenant=task.source_tenant,
    )
