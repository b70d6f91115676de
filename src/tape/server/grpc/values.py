"""The RPCs of values."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from tape.engine.fanout.hub import Hub
from tape.engine.ledgers import values
from tape.journal.appender import read_head
from tape.journal.journal import Journal
from tape.journal.reader import ExactCursor, select_visible
from tape.model import subject
from tape.model.entry import check_id
from tape.model.principal import current_principal
from tape.proto import tape_pb2 as pb
from tape.server.grpc.methods import Context, send_position, trace_of

log = logging.getLogger(__name__)


class ValuesService:
    """RPCs of values: write, read, watch, delete."""

    def __init__(self, journal: Journal, hub: Hub) -> None:
        self._database = journal.database
        self._max_bytes = journal.max_payload_bytes
        self._hub = hub
        self._malformed = hub.metrics.malformed_entries.labels("WatchValue")

    async def write_value(self, request: pb.WriteValueRequest, context: Context) -> pb.ValueRecord:
        """Write, or compare and set."""
        values.check_address(request.namespace, request.key)
        values.check_value(request.value_json, self._max_bytes)
        check_id("writer", request.writer)
        current_principal().check_write(subject.value_changed(request.namespace, request.key))
        trace = trace_of(context)
        value = await self._database.write(
            lambda tx: values.write(
                tx,
                request.namespace,
                request.key,
                request.value_json,
                if_version=request.if_version,
                writer=request.writer,
                trace=trace,
            ),
            size=len(request.value_json) + 512,
        )
        return record(value)

    async def get_value(self, request: pb.GetValueRequest, context: Context) -> pb.GetValueResponse:
        """The current value; a deleted one has found=False and its last version."""
        if (principal := current_principal()).read is not None:
            principal.check_read(subject.value_changed(request.namespace, request.key))
        value = await self._database.read(lambda reader: values.get(reader, request.namespace, request.key))
        if value is None:
            return pb.GetValueResponse(found=False)
        return pb.GetValueResponse(found=not value.deleted, value=record(value))

    async def delete_value(self, request: pb.DeleteValueRequest, context: Context) -> pb.DeleteValueResponse:
        """Delete a value; its version increases."""
        values.check_address(request.namespace, request.key)
        current_principal().check_write(subject.value_deleted(request.namespace, request.key))
        trace = trace_of(context)
        value = await self._database.write(lambda tx: values.delete(tx, request.namespace, request.key, trace=trace))
        if value is None:
            return pb.DeleteValueResponse(deleted=False, version=0)
        return pb.DeleteValueResponse(deleted=True, version=value.version)

    async def watch_value(self, request: pb.WatchValueRequest, context: Context) -> AsyncIterator[pb.ValueEvent]:
        """Every version above `from_version` that the journal still has, in order, then each new one.

        A damaged entry is left out: `prev_version` of the next event shows it. If the database lost versions that the
        watcher has, it gets the version that is current instead.
        """
        values.check_address(request.namespace, request.key)
        changed = subject.value_changed(request.namespace, request.key)
        deleted = subject.value_deleted(request.namespace, request.key)
        selection = select_visible(current_principal(), changed.replace("/changed/", "/*/", 1))
        head = await self._database.read(read_head)
        after, cursor = head.oldest - 1, ExactCursor((changed, deleted))
        subscription = await self._hub.subscribe(selection, after, cursor, skip_gaps=True)
        from_version = sent = request.from_version
        if head.epoch > 1 and (current := await self._current(request)).version < from_version:
            from_version = sent = current.version - 1
        try:
            await send_position(context, subscription.position)
            while True:
                batch = await subscription.next()
                if any(gap.reason == "diverged" for gap in batch.gaps):
                    current = await self._current(request)
                    if current.version < sent:
                        sent = current.version
                        yield pb.ValueEvent(value=current)
                for entry in batch.entries:
                    if not selection.matches(entry):
                        continue
                    try:
                        event = _event(entry.payload, entry.ts_ms)
                    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, msgspec.DecodeError):
                        # Only the system can append such an entry, and older journals may have one. Watchers go on.
                        self._malformed.inc()
                        log.warning("skipped a malformed value entry at global_seq %d", entry.global_seq)
                        continue
                    if event.value.version > from_version:
                        sent = event.value.version
                        yield event
        finally:
            subscription.close()

    async def _current(self, request: pb.WatchValueRequest) -> pb.ValueRecord:
        """The current value; one that was never written is a deleted one without a version."""
        value = await self._database.read(lambda reader: values.get(reader, request.namespace, request.key))
        if value is None:
            return pb.ValueRecord(namespace=request.namespace, key=request.key, deleted=True)
        return record(value)


def record(value: values.Value) -> pb.ValueRecord:
    """A value on the wire."""
    return pb.ValueRecord(
        namespace=value.namespace,
        key=value.key,
        value_json=value.value_json,
        version=value.version,
        ts_ms=value.ts_ms,
        writer=value.writer,
        deleted=value.deleted,
    )


def _event(payload: dict[str, Any], ts_ms: int) -> pb.ValueEvent:
    written = payload.get("value")
    return pb.ValueEvent(
        value=pb.ValueRecord(
            namespace=payload["namespace"],
            key=payload["key"],
            value_json=written["value_json"] if isinstance(written, dict) else "",
            version=payload["version"],
            ts_ms=ts_ms,
            writer=payload.get("writer", ""),
            deleted=bool(payload.get("deleted", False)),
        ),
        prev_version=payload["prev_version"],
        prev_value_json=payload["prev_value_json"],
    )
