"""The journal's RPCs: append, follow, and the subscriptions of older clients."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import msgspec

from tape.base.telemetry.tracing import NO_TRACE
from tape.cel import Predicate, compile_predicate
from tape.engine.fanout.hub import Hub
from tape.engine.fanout.subscription import Batch, JournalSubscription
from tape.engine.reactions.registry import qualify_reaction
from tape.errors import InvalidInput, NotFound, TapeError
from tape.journal.journal import DRAFTS_AT_ONCE, AppendRequest, Journal, Part
from tape.journal.reader import RunCursor, has_entry, select_visible
from tape.model.entry import Draft
from tape.model.principal import current_principal
from tape.proto import tape_pb2 as pb
from tape.server.admission import Admission, Ticket
from tape.server.grpc.access import is_open_caller, own
from tape.server.grpc.decoders import DecodedRequests, Undecodable
from tape.server.grpc.frames import Frames, encode_batches, encode_journal_entry, to_gap
from tape.server.grpc.methods import INTERNAL_ERROR, Context, end_turn, send_position, trace_of
from tape.server.grpc.waiting_gaps import WaitingGaps

log = logging.getLogger(__name__)

MAX_BATCH_ENTRIES = 1_024
# Requests of one append stream that may be in flight.
MAX_STREAMED_APPENDS = 64
# Seconds between checkpoints on an idle stream.
CHECKPOINT_S = 5.0
# Seconds until a stream that has read history up to the head reports so, even if the last entries did not match.
CAUGHT_UP_S = 0.02
# Characters of a predicate that is compiled on the event loop, in about 2 ms.
INLINE_PREDICATE = 1_024


class JournalService:
    """RPCs of the journal itself."""

    def __init__(self, journal: Journal, hub: Hub, admission: Admission) -> None:
        self._journal = journal
        self._admission = admission
        self._hub = hub
        self._frames = Frames()
        self._append_streams: set[asyncio.Queue[asyncio.Task[pb.AppendReply] | None]] = set()

    async def append(self, request: pb.AppendRequest, context: Context) -> pb.AppendResponse:
        """Append drafts, all or none."""
        drafts = await to_drafts(request)
        trace = trace_of(context)
        if trace is not NO_TRACE:
            cause = {"cause": trace.cause} if trace.cause else {}
            whole = trace._asdict() if trace.trace_id else cause
            drafts = [msgspec.structs.replace(draft, **(cause if draft.trace_id else whole)) for draft in drafts]
        prepared = await self._prepare(request, drafts)
        end_turn(context)
        global_seqs = await self._journal.submit(prepared)
        return pb.AppendResponse(global_seqs=global_seqs)

    async def append_stream(self, requests: DecodedRequests, context: Context) -> AsyncIterator[pb.AppendReply]:
        """Append requests as they arrive, in their order; up to MAX_STREAMED_APPENDS are in flight."""
        answers: asyncio.Queue[asyncio.Task[pb.AppendReply] | None] = asyncio.Queue()
        slots = asyncio.Semaphore(MAX_STREAMED_APPENDS)
        preparing = asyncio.Lock()

        async def accept() -> None:
            try:
                while (data := await requests.next_bytes()) is not None:
                    await slots.acquire()
                    if (answering := await self._accept(requests, data, preparing)) is None:
                        break
                    answers.put_nowait(answering)
            finally:
                answers.put_nowait(None)

        self._append_streams.add(answers)
        accepting = asyncio.create_task(accept())
        try:
            while (answer := await answers.get()) is not None:
                yield await answer
                slots.release()
        finally:
            self._append_streams.discard(answers)
            accepting.cancel()

    def end_append_streams(self) -> None:
        """Answer accepted requests, then end the streams: the server is stopping."""
        for answers in self._append_streams:
            answers.put_nowait(None)

    async def _accept(
        self, requests: DecodedRequests, data: bytes, preparing: asyncio.Lock
    ) -> asyncio.Task[pb.AppendReply] | None:
        """Admit and decode a request, then let it be answered beside the next; None if it is undecodable."""
        try:
            ticket = self._admission.enter(current_principal(), len(data), appends=True)
        except TapeError as error:
            return asyncio.create_task(_refuse(error))
        try:
            await ticket.turn()
            request = requests.decode(data)
        except BaseException:
            ticket.leave()
            raise
        if isinstance(request, Undecodable):
            ticket.leave()
            return None
        ticket.charge_appends(len(request.drafts))
        return asyncio.create_task(self._answer(request, ticket, preparing))

    async def _prepare(self, request: pb.AppendRequest, drafts: list[Draft]) -> AppendRequest:
        return await self._journal.prepare(
            drafts,
            request_id=request.request_id,
            of_client=True,
            first_write_wins=request.first_write_wins,
            inherits_tenant=is_open_caller(),
            part=Part(request.part_of, request.part_at) if request.part_of else None,
        )

    async def _answer(self, request: pb.AppendRequest, ticket: Ticket, preparing: asyncio.Lock) -> pb.AppendReply:
        try:
            async with preparing:  # a large request is prepared in parts, and later ones must not overtake it
                prepared = await self._prepare(request, await to_drafts(request))
            global_seqs = await self._journal.submit(prepared)
        except TapeError as error:
            return await _refuse(error)
        except Exception:
            log.exception("append failed")
            return pb.AppendReply(error_code=TapeError.code, error_message=INTERNAL_ERROR)
        finally:
            ticket.leave()
        return pb.AppendReply(global_seqs=global_seqs)

    async def get_head(self, request: pb.GetHeadRequest, context: Context) -> pb.JournalHead:
        """The head and the oldest entry of the journal."""
        head = await self._journal.head()
        return pb.JournalHead(
            global_seq=head.global_seq,
            oldest=head.oldest,
            ts_ms=head.ts_ms,
            chain=head.chain,
            journal_id=head.journal_id,
            epoch=head.epoch,
            several_tenants=current_principal().reads_several_tenants,
        )

    async def follow(self, request: pb.FollowRequest, context: Context) -> AsyncIterator[bytes]:
        """Entries in batches; the first message carries the starting cursor."""
        predicate = await _compile(request.predicate_cel)
        selection = select_visible(current_principal(), request.subject_pattern, request.run_id, request.kind)
        max_entries = request.max_entries or MAX_BATCH_ENTRIES
        if not 0 < max_entries <= MAX_BATCH_ENTRIES:
            raise InvalidInput(f"max_entries {request.max_entries} must lie between 1 and {MAX_BATCH_ENTRIES}.")
        subscription = await self._hub.subscribe(
            selection,
            request.from_global_seq,
            predicate=predicate,
            skip_gaps=request.skip_gaps,
            encoder=lambda batch: encode_batches(batch, max_entries, self._hub.head),
        )
        head = self._hub.head
        try:
            batch = Batch([], subscription.position)
            while True:
                for message in batch.encoded or self._frames.batches(batch, max_entries, self._hub.head):
                    yield message
                has_caught_up = subscription.position >= head
                batch = await subscription.next(max_entries, CHECKPOINT_S if has_caught_up else CAUGHT_UP_S)
        finally:
            subscription.close()

    async def subscribe_by_subject(
        self, request: pb.SubscribeBySubjectRequest, context: Context
    ) -> AsyncIterator[bytes]:
        """Entries one by one."""
        predicate = await _compile(request.predicate_cel)
        selection = select_visible(current_principal(), request.subject_pattern)
        subscription = await self._hub.subscribe(
            selection, request.from_global_seq, predicate=predicate, skip_gaps=request.skip_gaps
        )
        async for frame in self._events(subscription, context):
            yield frame

    async def subscribe_events(self, request: pb.SubscribeEventsRequest, context: Context) -> AsyncIterator[bytes]:
        """Entries one by one, from a global_seq or, for older clients, from a time."""
        selection = select_visible(current_principal(), request.subject_pattern, request.run_id, request.kind)
        after = request.from_global_seq
        if after == 0 and request.from_ts_ms > 0:
            after = await self._hub.history.position_before(request.from_ts_ms)
        subscription = await self._hub.subscribe(selection, after, skip_gaps=request.skip_gaps)
        async for frame in self._events(subscription, context):
            yield frame

    async def subscribe_run(self, request: pb.SubscribeRunRequest, context: Context) -> AsyncIterator[bytes]:
        """One run's entries, from a seq on."""
        selection = select_visible(current_principal(), run_id=request.run_id)
        if not await self._journal.database.read(lambda reader: has_entry(reader, selection)):
            raise NotFound(f"no such run: {request.run_id!r} has no entry on this journal.")
        after = await self._hub.history.resolve_start(0, selection, request.from_seq)
        cursor = RunCursor(selection, request.from_seq)
        subscription = await self._hub.subscribe(selection, after, cursor, skip_gaps=request.skip_gaps)
        waiting = WaitingGaps()
        try:
            await send_position(context, subscription.position)
            while True:
                for entry, gaps in waiting.pair(await subscription.next()):
                    if entry.seq >= request.from_seq:
                        frame = encode_journal_entry(entry)
                        yield frame + pb.JournalEntry(gaps=map(to_gap, gaps)).SerializeToString() if gaps else frame
        finally:
            subscription.close()

    async def _events(self, subscription: JournalSubscription, context: Context) -> AsyncIterator[bytes]:
        waiting = WaitingGaps()
        try:
            await send_position(context, subscription.position)
            while True:
                for entry, gaps in waiting.pair(await subscription.next()):
                    frame = self._frames.event(entry, self._hub.head)
                    yield frame + pb.EventEntry(gaps=map(to_gap, gaps)).SerializeToString() if gaps else frame
        finally:
            subscription.close()


async def _compile(text: str) -> Predicate | None:
    """A predicate; None for the empty text. One of 16 KiB takes up to 40 ms, so long ones are compiled on a thread."""
    if not text:
        return None
    return (
        compile_predicate(text) if len(text) <= INLINE_PREDICATE else await asyncio.to_thread(compile_predicate, text)
    )


async def _refuse(error: TapeError) -> pb.AppendReply:
    return pb.AppendReply(error_code=error.code, error_message=str(error))


async def to_drafts(request: pb.AppendRequest) -> list[Draft]:
    """The drafts of a request, with defaults for missing fields and the caller's identity."""
    if len(request.drafts) <= DRAFTS_AT_ONCE:
        return own([_to_draft(draft) for draft in request.drafts])
    drafts: list[Draft] = []
    for start in range(0, len(request.drafts), DRAFTS_AT_ONCE):
        drafts += own([_to_draft(draft) for draft in request.drafts[start : start + DRAFTS_AT_ONCE]])
        await asyncio.sleep(0)  # other calls are served between the parts of a large one
    return drafts


def _to_draft(draft: pb.Draft) -> Draft:
    return Draft(
        subject=draft.subject,
        payload_json=draft.payload_json or "{}",
        kind=draft.kind,
        run_id=draft.run_id,
        schema_version=draft.schema_version or 1,
        trace_id=draft.trace_id,
        span_id=draft.span_id,
        parent_span_id=draft.parent_span_id,
        tenant=draft.tenant,
        user=draft.user,
        session=draft.session,
        cause=qualify_reaction(draft.cause),
    )
