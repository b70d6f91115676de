"""The RPCs of dead letters of every origin."""

from __future__ import annotations

from collections.abc import Sequence

from tape.engine.reactions.task_broker import TaskBroker
from tape.errors import InvalidInput
from tape.journal.journal import Journal
from tape.model.entry import check_id
from tape.model.tenant_names import qualify
from tape.proto import tape_pb2 as pb
from tape.server.dead_letters.dead_letter import DeadLetter, DeadLetterQuery, Unreachable
from tape.server.dead_letters.journaled import MessageOrigin, RelayOrigin
from tape.server.dead_letters.spools import Reveal, SpoolOrigin
from tape.server.dead_letters.surface import DeadLetters, SettledDeadLetters
from tape.server.dead_letters.tasks import TaskOrigin
from tape.server.grpc.checks import check_time
from tape.server.grpc.messages import to_message
from tape.server.grpc.methods import Context
from tape.subscriptions.spool.backend import Area

DEFAULT_PREVIEW = 500
MAX_PREVIEW = 65_536


class DeadLettersService:
    """The RPCs of dead letters."""

    def __init__(self, journal: Journal, task_broker: TaskBroker, reveal: Reveal) -> None:
        self._surface = DeadLetters(
            journal,
            [
                TaskOrigin(journal.database, task_broker),
                MessageOrigin(journal.database, journal.max_payload_bytes),
                SpoolOrigin(journal, reveal, Area.DEAD),
                SpoolOrigin(journal, reveal, Area.QUARANTINE),
                RelayOrigin(journal.database),
            ],
        )

    async def list_dead_letters(
        self, request: pb.ListDeadLettersRequest, context: Context
    ) -> pb.ListDeadLettersResponse:
        """Dead letters that fit a filter, page by page, or their counts by error."""
        query, preview = _query(request.filter), _preview_bytes(request.preview_bytes, DEFAULT_PREVIEW)
        if request.group:
            groups, cursor, unreachable = await self._surface.group(query, request.cursor)
            return pb.ListDeadLettersResponse(
                groups=[to_message(pb.DeadLetterGroup, group) for group in groups],
                next_cursor=cursor,
                unreachable=_unreachable(unreachable),
            )
        page = await self._surface.list_page(query, request.cursor, request.limit)
        return pb.ListDeadLettersResponse(
            dead_letters=[_message(each, preview) for each in page.found],
            next_cursor=page.cursor,
            unreachable=_unreachable(page.unreachable),
        )

    async def get_dead_letter(self, request: pb.GetDeadLetterRequest, context: Context) -> pb.DeadLetter:
        """One dead letter, with up to 64 KiB of its payload."""
        preview = _preview_bytes(request.preview_bytes, MAX_PREVIEW)
        return _message(await self._surface.find(request.id), preview)

    async def redrive_dead_letters(
        self, request: pb.RedriveDeadLettersRequest, context: Context
    ) -> pb.SettleDeadLettersResponse:
        """Bring dead letters back."""
        settled = await self._surface.settle(
            "redriven",
            ids=request.ids,
            query=_query(request.filter),
            everything=request.everything,
            limit=request.limit,
            cursor=request.cursor,
            dry_run=request.dry_run,
        )
        return _settled(settled)

    async def drop_dead_letters(
        self, request: pb.DropDeadLettersRequest, context: Context
    ) -> pb.SettleDeadLettersResponse:
        """Give dead letters up."""
        settled = await self._surface.settle(
            "dropped",
            ids=request.ids,
            query=_query(request.filter),
            everything=request.everything,
            limit=request.limit,
            cursor=request.cursor,
            dry_run=request.dry_run,
            reason=request.reason,
        )
        return _settled(settled)


def _query(on_wire: pb.DeadLetterFilter) -> DeadLetterQuery:
    check_id("subscription", on_wire.subscription)
    check_id("reaction_id", on_wire.reaction_id)
    since_ms = on_wire.since_ms
    if since_ms:
        check_time("since_ms", since_ms)
    return DeadLetterQuery(
        origins=tuple(on_wire.origins),
        subscription=qualify(on_wire.subscription),
        reaction_id=on_wire.reaction_id,
        since_ms=since_ms,
        error_contains=on_wire.error_contains,
    )


def _preview_bytes(wanted: int, default: int) -> int:
    if not 0 <= wanted <= MAX_PREVIEW:
        raise InvalidInput(f"preview_bytes {wanted} must lie between 0 and {MAX_PREVIEW}; 0 means {default}.")
    return wanted or default


def _message(found: DeadLetter, preview_bytes: int) -> pb.DeadLetter:
    encoded = found.payload.encode(errors="replace")
    preview = encoded[:preview_bytes].decode(errors="ignore")
    return to_message(pb.DeadLetter, found, preview=preview, is_truncated=len(encoded) > preview_bytes)


def _settled(settled: SettledDeadLetters) -> pb.SettleDeadLettersResponse:
    return pb.SettleDeadLettersResponse(
        ids=settled.ids,
        failures=[pb.DeadLetterFailure(id=key, reason=why) for key, why in settled.failures.items()],
        next_cursor=settled.cursor,
        unreachable=_unreachable(settled.unreachable),
    )


def _unreachable(found: Sequence[Unreachable]) -> list[pb.UnreachableDeadLetters]:
    return [pb.UnreachableDeadLetters(**each._asdict()) for each in found]
