"""`AdvanceRun` and `AdvanceRuns`: lease, complete, begin and end in one commit instead of several."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tape.base.telemetry.tracing import Trace, parse_traceparent
from tape.engine.ledgers.advance import Completion, Ending, Move, Unusual, advance, advance_many
from tape.engine.ledgers.effects import Begun, Denied, completed_status
from tape.engine.ledgers.run_results import check_result
from tape.engine.reactions.registry import qualify_reaction
from tape.errors import InvalidInput, TapeError
from tape.journal.journal import Journal
from tape.model.entry import check_id
from tape.model.ledger_states import ChangeCheck, parse
from tape.model.principal import current_principal
from tape.proto import tape_pb2 as pb
from tape.server.grpc.checks import check_texts
from tape.server.grpc.effects import wanted_effect
from tape.server.grpc.messages import to_message
from tape.server.grpc.methods import CAUSE_KEY, Context, caller_of, owner_of, trace_of

MAX_MOVES = 1_000
# Bytes a move adds to the write queue besides its texts: its entries and changed rows.
MOVE_BYTES = 1_024

Outcome = Begun | TapeError | None


class AdvanceService:
    """RPCs that move runs from one effect to the next."""

    def __init__(self, journal: Journal) -> None:
        self._database = journal.database
        self._max_bytes = journal.max_payload_bytes

    async def advance_run(self, request: pb.AdvanceRunRequest, context: Context) -> pb.AdvanceRunResponse:
        """Take the lease, complete effects, begin the next one, end the run: what the request names, all or none."""
        move = self._move(request, trace_of(context), owner_of(context), caller_of(context))
        (outcome,) = await self._advance([move], request.ByteSize())
        if isinstance(outcome, TapeError):
            raise outcome
        return pb.AdvanceRunResponse(begun=_begun(outcome))

    async def advance_runs(self, request: pb.AdvanceRunsRequest, context: Context) -> pb.AdvanceRunsResponse:
        """The same for many runs at once; each has its own result."""
        if len(request.moves) > MAX_MOVES:
            raise InvalidInput(f"moves has {len(request.moves)} elements; send {MAX_MOVES} at most.")
        trace, owner, caller = trace_of(context), owner_of(context), caller_of(context)
        outcomes: list[Move | Outcome] = []
        for each in request.moves:
            try:
                outcomes.append(self._move(each, trace, owner, caller))
            except TapeError as error:
                outcomes.append(error)
        good = [outcome for outcome in outcomes if isinstance(outcome, Move)]
        done = iter(await self._advance(good, request.ByteSize()))
        return pb.AdvanceRunsResponse(
            results=[_result(next(done) if isinstance(each, Move) else each) for each in outcomes]
        )

    async def _advance(self, moves: Sequence[Move], size: int) -> list[Outcome]:
        usual = [move for move in moves if move.is_usual]
        found = iter(
            await self._database.write_bulk(advance_many, usual, size + MOVE_BYTES * len(usual)) if usual else ()
        )
        outcomes = [next(found) if move.is_usual else Unusual() for move in moves]
        return await asyncio.gather(*(self._advance_one(*each) for each in zip(moves, outcomes, strict=True)))

    async def _advance_one(self, move: Move, outcome: Outcome | Unusual) -> Outcome:
        if not isinstance(outcome, Unusual):
            return outcome
        try:
            found = await self._database.write(lambda tx: advance(tx, move), MOVE_BYTES + _weight(move))
        except TapeError as error:
            return error
        return found.error if isinstance(found, Denied) else found

    def _move(self, request: pb.AdvanceRunRequest, trace: Trace, owner: str, caller: str) -> Move:
        self._check(request)
        if request.traceparent or request.cause:
            check_id(CAUSE_KEY, request.cause)
            trace = parse_traceparent(request.traceparent)._replace(cause=qualify_reaction(request.cause))
        return Move(
            run_id=request.run_id,
            owner=request.lease_owner or owner,
            lease_ms=request.lease_ttl_ms,
            complete=tuple(
                Completion(each.idempotency_key, completed_status(each.status), each.response_json, each.error_json)
                for each in request.complete
            ),
            begin=wanted_effect(request.begin, self._max_bytes) if request.HasField("begin") else None,
            change_check=parse(ChangeCheck, "begin.change_check", request.begin.change_check),
            after_seq=request.begin.after_seq,
            end=Ending(request.end.status, request.end.detail_json, request.end.result_json)
            if request.HasField("end")
            else None,
            trace=trace,
            principal=current_principal(),
            caller=caller,
        )

    def _check(self, request: pb.AdvanceRunRequest) -> None:
        parts = [*request.complete]
        parts += [part for name in ("begin", "end") if request.HasField(name) for part in [getattr(request, name)]]
        for part in parts:
            if part.run_id != request.run_id:
                raise InvalidInput(
                    f"run_id {part.run_id!r} differs from {request.run_id!r}: one request is about one run."
                )
        for each in request.complete:
            check_texts(self._max_bytes, response_json=each.response_json, error_json=each.error_json)
        if request.HasField("end"):
            check_texts(self._max_bytes, detail_json=request.end.detail_json, result_json=request.end.result_json)
            check_result(request.end.result_json)


def _weight(move: Move) -> int:
    texts = [len(each.response_json) + len(each.error_json) for each in move.complete]
    return sum(texts) + (len(move.begin.request_json) if move.begin else 0)


def _begun(outcome: Begun | None) -> pb.BeginEffectResponse | None:
    if outcome is None:
        return None
    return to_message(pb.BeginEffectResponse, outcome.effect, existing=outcome.existed, displaced=outcome.displaced)


def _result(outcome: Outcome) -> pb.AdvanceRunResult:
    if isinstance(outcome, TapeError):
        return pb.AdvanceRunResult(error_code=outcome.code, error_message=str(outcome))
    return pb.AdvanceRunResult(begun=_begun(outcome))
