"""The client for asyncio. The synchronous client runs this one on a thread."""

from __future__ import annotations

import copy
import warnings
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from tape.base.retry import RECONNECT, Backoff
from tape.base.telemetry.tracing import NO_TRACE, current_trace, to_traceparent
from tape.client import resumption, rpcs
from tape.client.advance_batcher import AdvanceBatcher
from tape.client.append_batcher import TIMEOUT_S, AppendBatcher, RequestRef
from tape.client.append_stream import AppendStream
from tape.client.catalog import CatalogCalls
from tape.client.channel import DEFAULT_URL, Channel, connect
from tape.client.credentials import Credentials
from tape.client.effects import EffectCalls
from tape.client.gap import OnGap, report_gap, to_gap
from tape.client.reactions import ReactionCalls
from tape.client.resumption import ResumableCall, Resumptions, is_outage
from tape.client.runs import RunCalls
from tape.client.schedules import ScheduleCalls
from tape.client.sessions import SessionCalls
from tape.client.upgrade import Transport, choose_transport
from tape.client.values import ValueCalls
from tape.client.verification import Anchor, ChainVerifier, check_contiguous
from tape.errors import EntryDamaged, InvalidInput, TapeError
from tape.model.entry import Draft, Entry
from tape.model.payload import to_json
from tape.proto import tape_pb2 as pb

DEPRECATED_SPEAKING_AS = "speaking_as() is deprecated; use with_lease_owner()."

# A larger request is sent as a call of its own: if the server refuses its size, the appends on the stream go on.
MAX_STREAMED_BYTES = 2 << 20

_Named = TypeVar("_Named", pb.EventEntry, pb.JournalEntry)
_Subscription = TypeVar("_Subscription", pb.FollowRequest, pb.SubscribeEventsRequest)


def _begin_after(request: pb.SubscribeEventsRequest, position: int) -> None:
    request.from_global_seq = position


def _move_after(request: pb.SubscribeEventsRequest, entry: pb.EventEntry) -> None:
    request.from_global_seq = entry.global_seq


def _move_after_batch(request: pb.FollowRequest, batch: pb.EntryBatch) -> None:
    request.from_global_seq = batch.position


def _has_position(request: _Subscription) -> bool:
    """Whether a request says where to resume; "from the next new entry" would leave out those of the outage."""
    return request.from_global_seq >= 0


def _move_run_after(request: pb.SubscribeRunRequest, entry: pb.JournalEntry) -> None:
    request.from_seq = entry.seq + 1


_FOLLOW = ResumableCall(rpcs.FOLLOW, _move_after_batch, can_repeat=_has_position)
_EVENTS = ResumableCall(rpcs.SUBSCRIBE_EVENTS, _move_after, _begin_after, _has_position)
_RUN = ResumableCall(rpcs.SUBSCRIBE_RUN, _move_run_after)


class AsyncTapeClient(RunCalls, EffectCalls, ValueCalls, SessionCalls, ScheduleCalls, ReactionCalls, CatalogCalls):
    """A connection to one server. Use as an async context manager, or call `close()`.

    `sqlite:agent.db` is a file instead of a server: an engine in this process serves the calls (docs/embedded.md).

    With a `lease_owner` the server rejects writes to a run that another owner has leased. Calls and appends made
    inside an OpenTelemetry span carry its trace context. `tapes://…` uses TLS, with the authorities in the file
    TAPE_CA, else the system's, and the client certificate TAPE_CLIENT_CERT with TAPE_CLIENT_KEY. Credentials are the
    `id_token`, else TAPE_TOKEN, else Google's identity token for the `audience`; `auth=False` sends none.

    With the `transport` `auto`, the default, unary calls change from gRPC to the call protocol where the server has it
    (docs/calls.md); `grpc` prevents that, as does TAPE_TRANSPORT=grpc.

    A subscription or watch that loses its server is opened again, for `reconnect_timeout_s` since it was lost, and
    resumes after the last entry that it returned; `follow` does so without a limit.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        auth: bool = True,
        audience: str = "",
        id_token: str = "",
        lease_owner: str = "",
        append_timeout_s: float = TIMEOUT_S,
        reconnect_timeout_s: float = resumption.TIMEOUT_S,
        transport: Transport | None = None,
    ) -> None:
        self.url = url
        credentials = Credentials(auth=auth, audience=audience, id_token=id_token)
        channel = connect(url, lease_owner, credentials, choose_transport(transport))
        self._use(channel, append_timeout_s, reconnect_timeout_s)

    @classmethod
    def over(cls, channel: Channel) -> AsyncTapeClient:
        """A client on a channel of the caller's own making."""
        client = cls.__new__(cls)
        client.url = channel.url
        client._use(channel)
        return client

    def _use(
        self,
        channel: Channel,
        append_timeout_s: float = TIMEOUT_S,
        reconnect_timeout_s: float = resumption.TIMEOUT_S,
    ) -> None:
        self._channel = channel
        self._resumptions = Resumptions(reconnect_timeout_s)
        self._appends = AppendStream(self._channel)
        self._batcher = AppendBatcher(self._send, append_timeout_s)
        self._advances = AdvanceBatcher(self._channel)

    async def __aenter__(self) -> AsyncTapeClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def with_lease_owner(self, lease_owner: str) -> AsyncTapeClient:
        """A client for another lease owner on the same connection; `close()` of this client disconnects both."""
        other = copy.copy(self)
        other._channel = self._channel.with_lease_owner(lease_owner)
        return other

    def speaking_as(self, lease_owner: str) -> AsyncTapeClient:
        """Deprecated name of `with_lease_owner`."""
        warnings.warn(DEPRECATED_SPEAKING_AS, DeprecationWarning, stacklevel=2)
        return self.with_lease_owner(lease_owner)

    async def close(self) -> None:
        """Wait for appends in flight, then disconnect."""
        await self._batcher.flush()
        await self._advances.flush()
        await self._appends.close()
        await self._channel.close()

    # ── the journal ──────────────────────────────────────────────────────────────────────────────

    async def append(self, /, subject: str, payload: Any = None, *, request_id: str = "", **fields: Any) -> int:
        """Append one event; returns its `global_seq` once it is durable.

        `payload` is any JSON value. `fields` are the other fields of `Draft`: run_id, tenant,
        user, session, schema_version, trace_id, …. Concurrent callers share messages and commits.

        While the server cannot be reached, the append is sent again for `append_timeout_s`. After that the error has a
        `request_id`: `append(…, request_id=error.request_id)` appends at most once, for a day and from any process.
        """
        trace = current_trace()
        if trace is not NO_TRACE and "trace_id" not in fields:
            fields |= trace._asdict()
        elif trace.cause:
            fields.setdefault("cause", trace.cause)
        draft = Draft(subject=subject, payload_json=to_json(payload), **fields)
        return (await self.append_many([draft], request_id=request_id))[0]

    async def append_many(
        self, drafts: Sequence[Draft], *, request_id: str = "", first_write_wins: bool = False
    ) -> list[int]:
        """Append drafts, all or none, with consecutive `global_seq`s, which it returns.

        With a `request_id` of your own you may retry after a failure, for a day and from any process, without
        appending them twice. The same id with other content is a RequestConflict, or, if `first_write_wins`, gets the
        answer of the first.
        """
        if request_id:
            return await self._batcher.send(drafts, request_id, first_write_wins)
        return await self._batcher.append(drafts)

    async def head(self) -> pb.JournalHead:
        """Both ends of the journal: `global_seq`, `oldest`, and the chain value at the head."""
        return await self._channel.call(rpcs.GET_HEAD, pb.GetHeadRequest())

    async def follow(
        self,
        subject_pattern: str = "",
        *,
        from_global_seq: int = 0,
        run_id: str = "",
        kind: str = "",
        predicate_cel: str = "",
        reconnect: bool = True,
        skip_gaps: bool = False,
        on_gap: OnGap | None = None,
        verify: bool = False,
        verify_from: Anchor | None = None,
    ) -> AsyncIterator[Entry]:
        """Every matching entry after a cursor, in order and exactly once; then new entries, without end.

        `from_global_seq` 0 starts with the oldest entry, -1 with the next new one. When the connection is lost, the
        stream reconnects and resumes after the last entry it returned.

        At an entry that is damaged or missing it raises EntryDamaged, with a cursor that points to entries that the
        database has lost CursorDiverged; begin again after `error.last`. With `skip_gaps` it goes on and calls
        `on_gap` with each gap, or logs a warning.

        With `verify` the client computes the chain itself. The first entry is trusted, unless it is entry 1, or
        `verify_from` has the number and the chain value of the entry before it. It needs every entry: a pattern, run,
        kind or predicate is rejected.
        """
        request = _follow_request(subject_pattern, from_global_seq, run_id, kind, predicate_cel, skip_gaps)
        verifier = _verifier(request, on_gap, verify_from, verify=verify)
        async for batch in self._follow(request, verifier, reconnect=reconnect):
            gaps = list(batch.gaps)
            for event in batch.entries:
                while gaps and gaps[0].first < event.global_seq:
                    await report_gap(to_gap(gaps.pop(0)), on_gap)
                yield to_entry(event)
            for gap in gaps:
                await report_gap(to_gap(gap), on_gap)

    async def follow_batches(
        self,
        subject_pattern: str = "",
        *,
        from_global_seq: int = 0,
        run_id: str = "",
        kind: str = "",
        predicate_cel: str = "",
        reconnect: bool = True,
        skip_gaps: bool = False,
        on_gap: OnGap | None = None,
        verify: bool = False,
        verify_from: Anchor | None = None,
    ) -> AsyncIterator[pb.EntryBatch]:
        """Like `follow`, in batches; `position` is the cursor to resume from, also of an empty batch.

        With `skip_gaps` the `gaps` of a batch are those before `position` that no earlier batch has named.
        """
        request = _follow_request(subject_pattern, from_global_seq, run_id, kind, predicate_cel, skip_gaps)
        verifier = _verifier(request, on_gap, verify_from, verify=verify)
        async for batch in self._follow(request, verifier, reconnect=reconnect):
            for gap in batch.gaps:
                await report_gap(to_gap(gap), on_gap)
            yield batch

    async def _follow(
        self, request: pb.FollowRequest, verifier: ChainVerifier | None, *, reconnect: bool
    ) -> AsyncIterator[pb.EntryBatch]:
        backoff = Backoff(RECONNECT)
        while True:
            try:
                async for batch in self._channel.stream(rpcs.FOLLOW, request):
                    backoff.reset()
                    broken = None if verifier is None else verifier.verify(batch, skip_gaps=request.skip_gaps)
                    _move_after_batch(request, batch)
                    yield batch
                    if broken is not None:
                        raise EntryDamaged(broken.first, broken.last, broken.detail)
            except TapeError as error:
                if not reconnect or not is_outage(error):
                    raise
                self._resumptions.count(rpcs.FOLLOW.name, error, is_first=not backoff.failures)
            await backoff.wait_async()

    @property
    def reconnects(self) -> Mapping[str, int]:
        """How often streams of this client were lost and opened again, by RPC."""
        return dict(self._resumptions.counts)

    # ── subscriptions, named for their RPCs ───────────────────────────────────────────────────────

    def subscribe_by_subject(
        self,
        *,
        subject_pattern: str,
        predicate_cel: str = "",
        from_global_seq: int = 0,
        timeout: float | None = None,
        skip_gaps: bool = False,
        on_gap: OnGap | None = None,
    ) -> AsyncIterator[pb.EventEntry]:
        """Matching entries one by one. `skip_gaps` and `on_gap` are those of `follow`; the next entry names the gap.

        They travel in the batches of `Follow`, many times faster than the messages of `SubscribeBySubject`.
        """
        request = _follow_request(subject_pattern, from_global_seq, "", "", predicate_cel, skip_gaps)
        batches = self._resumptions.stream(self._channel, _FOLLOW, request, timeout)
        return _reporting(_one_by_one(batches), request, on_gap)

    def subscribe_events(
        self,
        *,
        from_ts_ms: int = 0,
        run_id: str = "",
        kind: str = "",
        from_global_seq: int = 0,
        subject_pattern: str = "",
        skip_gaps: bool = False,
        on_gap: OnGap | None = None,
    ) -> AsyncIterator[pb.EventEntry]:
        """Entries one by one, from a time or a global_seq on. `skip_gaps` and `on_gap` are those of `follow`."""
        request = pb.SubscribeEventsRequest(
            from_ts_ms=from_ts_ms,
            run_id=run_id,
            kind=kind,
            from_global_seq=from_global_seq,
            subject_pattern=subject_pattern,
            skip_gaps=skip_gaps,
        )
        return _reporting(self._resumptions.stream(self._channel, _EVENTS, request), request, on_gap)

    def subscribe_run(
        self,
        *,
        run_id: str,
        from_seq: int = 0,
        timeout: float | None = None,
        skip_gaps: bool = False,
        on_gap: OnGap | None = None,
    ) -> AsyncIterator[pb.JournalEntry]:
        """One run's entries from a seq on, then new ones. `skip_gaps` and `on_gap` are those of `follow`."""
        request = pb.SubscribeRunRequest(run_id=run_id, from_seq=from_seq, skip_gaps=skip_gaps)
        return _reporting(self._resumptions.stream(self._channel, _RUN, request, timeout), request, on_gap)

    # ── tasks ────────────────────────────────────────────────────────────────────────────────────

    def dispatch_tasks(self, requests: AsyncIterator[pb.DispatchRequest]) -> AsyncIterator[pb.DispatchReply]:
        """Tasks pushed by the server to a dispatcher, which reports on the same stream; see `DispatchTasks`.

        The first request names the owner, the reactions and the window. The stream ends when `requests` ends.
        """
        return self._channel.converse(rpcs.DISPATCH_TASKS, requests)

    # ── internals ───────────────────────────────────────────────────────────────────────────────────

    async def _advance(self, move: pb.AdvanceRunRequest) -> pb.AdvanceRunResponse:
        if not move.lease_owner:
            move.lease_owner = self._channel.lease_owner
        trace = current_trace()
        if trace.trace_id:
            move.traceparent = to_traceparent(trace)
        if trace.cause:
            move.cause = trace.cause
        return await self._advances.send(move)

    async def _send(self, drafts: Sequence[Draft], ref: RequestRef, first_write_wins: bool) -> list[int]:
        request = pb.AppendRequest(
            request_id=ref.request_id, first_write_wins=first_write_wins, part_of=ref.of, part_at=ref.at
        )
        for draft in drafts:
            add_draft(request, draft)
        if _is_large(drafts) and request.ByteSize() > MAX_STREAMED_BYTES:
            response = await self._channel.call(rpcs.APPEND, request)
            return list(response.global_seqs)
        return await self._appends.send(request)


def _follow_request(
    subject_pattern: str, from_global_seq: int, run_id: str, kind: str, predicate_cel: str, skip_gaps: bool
) -> pb.FollowRequest:
    return pb.FollowRequest(
        subject_pattern=subject_pattern,
        from_global_seq=from_global_seq,
        run_id=run_id,
        kind=kind,
        predicate_cel=predicate_cel,
        skip_gaps=skip_gaps,
    )


def _verifier(
    request: pb.FollowRequest, on_gap: OnGap | None, verify_from: Anchor | None, *, verify: bool
) -> ChainVerifier | None:
    """The verifier of a follow; None if the chain is not verified. Raises InvalidInput for options that contradict."""
    _check_on_gap(on_gap, skip_gaps=request.skip_gaps)
    if not verify:
        if verify_from is not None:
            raise InvalidInput("verify_from needs verify=True.")
        return None
    check_contiguous(request)
    verifier = ChainVerifier(request.from_global_seq, verify_from)
    if verify_from is not None:
        if request.from_global_seq not in (0, verify_from[0]):
            raise InvalidInput(
                f"from_global_seq {request.from_global_seq} and verify_from {verify_from[0]} differ: the chain is"
                " verified from the entry after verify_from. Leave from_global_seq out."
            )
        request.from_global_seq = verify_from[0]
    return verifier


def _check_on_gap(on_gap: OnGap | None, *, skip_gaps: bool) -> None:
    if on_gap is not None and not skip_gaps:
        raise InvalidInput("on_gap needs skip_gaps=True: without it a gap is raised as EntryDamaged or CursorDiverged.")


async def _one_by_one(batches: AsyncGenerator[pb.EntryBatch, None]) -> AsyncIterator[pb.EventEntry]:
    """The entries of batches; each names the gaps between its predecessor and itself."""
    waiting: deque[pb.JournalGap] = deque()
    async with aclosing(batches):
        async for batch in batches:
            waiting += batch.gaps
            for entry in batch.entries:
                while waiting and waiting[0].first < entry.global_seq:
                    entry.gaps.append(waiting.popleft())
                yield entry


def _reporting(
    stream: AsyncIterator[_Named],
    request: pb.FollowRequest | pb.SubscribeEventsRequest | pb.SubscribeRunRequest,
    on_gap: OnGap | None,
) -> AsyncIterator[_Named]:
    """The entries of a stream; the gaps that they name are reported before them."""
    _check_on_gap(on_gap, skip_gaps=request.skip_gaps)
    return _report_gaps(stream, on_gap) if request.skip_gaps else stream


async def _report_gaps(stream: AsyncIterator[_Named], on_gap: OnGap | None) -> AsyncIterator[_Named]:
    try:
        async for entry in stream:
            for gap in entry.gaps:
                await report_gap(to_gap(gap), on_gap)
            yield entry
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()


def _is_large(drafts: Sequence[Draft]) -> bool:
    """Whether drafts may have more than MAX_STREAMED_BYTES; their exact size costs as much as encoding them."""
    return sum(len(draft.payload_json) for draft in drafts) + 1_024 * len(drafts) > MAX_STREAMED_BYTES // 2


def add_draft(request: pb.AppendRequest, draft: Draft) -> None:
    """Add a draft to a request. Empty fields, which most are, are not set: that saves time."""
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
    """The entry of a message."""
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
