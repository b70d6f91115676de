"""The client for asyncio. The synchronous one is this one on a thread."""

from __future__ import annotations

import asyncio
import copy
import logging
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

from tape.base.telemetry.tracing import NO_TRACE, current_trace, to_traceparent
from tape.client.advance_batcher import Advances
from tape.client.append_batcher import Batcher
from tape.client.append_stream import AppendStream
from tape.client.catalog import CatalogCalls
from tape.client.channel import DEFAULT_URL, Channel
from tape.client.credentials import Credentials
from tape.client.ledgers import LedgerCalls
from tape.client.reactions import ReactionCalls
from tape.errors import ServerStopping, ServerUnreachable, StoreUnavailable
from tape.model.entry import Draft, Entry
from tape.model.payload import to_json
from tape.proto import tape_pb2 as pb

log = logging.getLogger(__name__)

FIRST_RECONNECT_S = 0.1
LAST_RECONNECT_S = 2.0
# What is worth waiting for: the server or its database comes back.
_COMES_BACK = (ServerUnreachable, ServerStopping, StoreUnavailable)


class AsyncTapeClient(LedgerCalls, ReactionCalls, CatalogCalls):
    """A connection to one server. Use as an async context manager, or call `close()`.

    With a `lease_owner` every call says who makes it, and the server holds it to the leases of runs.
    Calls and appends made inside an OpenTelemetry span carry it. `tapes://…` is encrypted. A server that asks
    who calls is shown the `id_token`, else TAPE_TOKEN, else Google's token for the `audience`; `auth=False` shows none.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        auth: bool = True,
        audience: str = "",
        id_token: str = "",
        lease_owner: str = "",
    ) -> None:
        self.url = url
        self._channel = Channel(url, lease_owner, Credentials(auth=auth, audience=audience, id_token=id_token))
        self._appends = AppendStream(self._channel)
        self._batcher = Batcher(self._send)
        self._advances = Advances(self._channel)

    async def __aenter__(self) -> AsyncTapeClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def speaking_as(self, lease_owner: str) -> AsyncTapeClient:
        """This client under another lease owner, on the same connection: it is closed with this one."""
        other = copy.copy(self)
        other._channel = self._channel.speaking_as(lease_owner)
        return other

    async def close(self) -> None:
        """Let appends that are on their way arrive, then disconnect."""
        await self._batcher.flush()
        await self._advances.flush()
        await self._appends.close()
        await self._channel.close()

    # ── the journal ──────────────────────────────────────────────────────────────────────────────

    async def append(self, /, subject: str, payload: Any = None, **fields: Any) -> int:
        """Append one event; its `global_seq` once it is durable.

        `payload` is anything JSON can say. `fields` are the other fields of `Draft`: run_id, tenant,
        user, session, schema_version, trace_id, …. Concurrent callers share messages and commits.
        """
        trace = current_trace()
        if trace is not NO_TRACE and "trace_id" not in fields:
            fields |= trace._asdict()
        elif trace.cause:
            fields.setdefault("cause", trace.cause)
        return (await self.append_many([Draft(subject=subject, payload_json=to_json(payload), **fields)]))[0]

    async def append_many(self, drafts: Sequence[Draft], *, request_id: str = "") -> list[int]:
        """Append drafts, all or none, next to each other in the order; their `global_seq`s.

        With a `request_id` of your own you may send them again after a failure, also from another process and within
        a day, without appending them twice.
        """
        if request_id:
            return await self._batcher.send_surely(drafts, request_id)
        return await self._batcher.append(drafts)

    async def head(self) -> pb.JournalHead:
        """Both ends of the journal: `global_seq`, `oldest`, and the chain value at the head."""
        return await self._call("GetHead", pb.GetHeadRequest())  # type: ignore[no-any-return]

    async def follow(
        self,
        subject_pattern: str = "",
        *,
        from_global_seq: int = 0,
        run_id: str = "",
        kind: str = "",
        predicate_cel: str = "",
        reconnect: bool = True,
    ) -> AsyncIterator[Entry]:
        """Every matching entry after a cursor, in order, none missing, none twice; then live, without end.

        0 begins with the oldest entry, -1 with what comes next. When the server goes away, the
        stream resumes after the last entry seen as soon as it is back.
        """
        async for batch in self.follow_batches(
            subject_pattern,
            from_global_seq=from_global_seq,
            run_id=run_id,
            kind=kind,
            predicate_cel=predicate_cel,
            reconnect=reconnect,
        ):
            for event in batch.entries:
                yield to_entry(event)

    async def follow_batches(
        self,
        subject_pattern: str = "",
        *,
        from_global_seq: int = 0,
        run_id: str = "",
        kind: str = "",
        predicate_cel: str = "",
        reconnect: bool = True,
    ) -> AsyncIterator[pb.EntryBatch]:
        """Like `follow`, in the batches that travel; `position` is where to resume, also if a batch is empty."""
        request = pb.FollowRequest(
            subject_pattern=subject_pattern,
            from_global_seq=from_global_seq,
            run_id=run_id,
            kind=kind,
            predicate_cel=predicate_cel,
        )
        pause = FIRST_RECONNECT_S
        while True:
            try:
                async for batch in self._channel.stream("Follow", request):
                    pause = FIRST_RECONNECT_S
                    request.from_global_seq = batch.position or request.from_global_seq
                    yield batch
            except _COMES_BACK as error:
                if not reconnect:
                    raise
                log.info("the stream was lost, resuming after %d: %s", request.from_global_seq, error)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
            pause = min(pause * 2, LAST_RECONNECT_S)

    # ── subscriptions by their RPCs' names ───────────────────────────────────────────────────────

    def subscribe_by_subject(
        self,
        *,
        subject_pattern: str,
        predicate_cel: str = "",
        from_global_seq: int = 0,
        timeout: float | None = None,
    ) -> AsyncIterator[pb.EventEntry]:
        """Matching entries one by one, as the RPC sends them."""
        request = pb.SubscribeBySubjectRequest(
            subject_pattern=subject_pattern, predicate_cel=predicate_cel, from_global_seq=from_global_seq
        )
        return self._channel.stream("SubscribeBySubject", request, timeout)

    def subscribe_events(
        self,
        *,
        from_ts_ms: int = 0,
        run_id: str = "",
        kind: str = "",
        from_global_seq: int = 0,
        subject_pattern: str = "",
    ) -> AsyncIterator[pb.EventEntry]:
        """Entries one by one, from a time or a global_seq, as the RPC sends them."""
        request = pb.SubscribeEventsRequest(
            from_ts_ms=from_ts_ms,
            run_id=run_id,
            kind=kind,
            from_global_seq=from_global_seq,
            subject_pattern=subject_pattern,
        )
        return self._channel.stream("SubscribeEvents", request)

    def subscribe_run(
        self,
        *,
        run_id: str,
        from_seq: int = 0,
        timeout: float | None = None,
    ) -> AsyncIterator[pb.JournalEntry]:
        """One run's entries from a seq on, as the RPC sends them."""
        return self._channel.stream("SubscribeRun", pb.SubscribeRunRequest(run_id=run_id, from_seq=from_seq), timeout)

    # ── values ───────────────────────────────────────────────────────────────────────────────────

    async def write_value(
        self, *, namespace: str, key: str, value_json: str, if_version: int = -1, writer: str = ""
    ) -> pb.ValueRecord:
        """Write a value; with `if_version` >= 0 only if that is its current version (0: not there yet)."""
        return await self._call(  # type: ignore[no-any-return]
            "WriteValue",
            pb.WriteValueRequest(
                namespace=namespace, key=key, value_json=value_json, if_version=if_version, writer=writer
            ),
        )

    async def get_value(self, *, namespace: str, key: str) -> pb.GetValueResponse:
        """The value as it stands, and whether it is there."""
        return await self._call("GetValue", pb.GetValueRequest(namespace=namespace, key=key))  # type: ignore[no-any-return]

    async def delete_value(self, *, namespace: str, key: str) -> pb.DeleteValueResponse:
        """Delete a value."""
        return await self._call("DeleteValue", pb.DeleteValueRequest(namespace=namespace, key=key))  # type: ignore[no-any-return]

    def watch_value(self, *, namespace: str, key: str, from_version: int = 0) -> AsyncIterator[pb.ValueEvent]:
        """Every version above `from_version`, in order, then each new one."""
        request = pb.WatchValueRequest(namespace=namespace, key=key, from_version=from_version)
        return self._channel.stream("WatchValue", request)

    # ── tasks ────────────────────────────────────────────────────────────────────────────────────

    def dispatch_tasks(self, requests: AsyncIterator[pb.DispatchRequest]) -> AsyncIterator[pb.DispatchReply]:
        """Tasks as they come, for a dispatcher that reports on the same stream; see `DispatchTasks`.

        The first request names the owner, the reactions and the window. Ends when `requests` does.
        """
        return self._channel.converse("DispatchTasks", requests)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────

    async def _call(self, name: str, request: Any) -> Any:
        return await self._channel.call(name, request)

    async def _advance(self, move: pb.AdvanceRunRequest) -> pb.AdvanceRunResponse:
        if not move.lease_owner:
            move.lease_owner = self._channel.lease_owner
        trace = current_trace()
        if trace.trace_id:
            move.traceparent = to_traceparent(trace)
        if trace.cause:
            move.cause = trace.cause
        return await self._advances.send(move)

    async def _send(self, drafts: Sequence[Draft], request_id: str) -> list[int]:
        request = pb.AppendRequest(request_id=request_id)
        for draft in drafts:
            add_draft(request, draft)
        return await self._appends.send(request)


def add_draft(request: pb.AppendRequest, draft: Draft) -> None:
    """Put a draft on the wire. Most of its fields are usually empty, and those cost nothing."""
    on_wire = request.drafts.add(subject=draft.subject, payload_json=draft.payload_json)
    if draft.run_id:
        on_wire.run_id = draft.run_id
    if draft.kind:
        on_wire.kind = draft.kind
    if draft.schema_version != 1:
        on_wire.schema_version = draft.schema_version
    if draft.trace_id or draft.span_id or draft.parent_span_id:
        on_wire.trace_id = draft.trace_id
        on_wire.span_id = draft.span_id
        on_wire.parent_span_id = draft.parent_span_id
    if draft.tenant or draft.user or draft.session:
        on_wire.tenant = draft.tenant
        on_wire.user = draft.user
        on_wire.session = draft.session
    if draft.cause:
        on_wire.cause = draft.cause


def to_entry(event: pb.EventEntry) -> Entry:
    """An entry from the wire."""
    return Entry(
        event.global_seq,
        event.run_id,
        event.seq,
        event.kind,
        event.subject,
        event.payload_json,
        event.schema_version,
        event.trace_id,
        event.span_id,
        event.parent_span_id,
        event.ts_ms,
        event.tenant,
        event.user,
        event.session,
        event.chain,
    )
