"""`AdvanceRun`: what a run does between two acts, in one commit instead of several."""

from __future__ import annotations

from tape.errors import InvalidInput
from tape.journal.journal import Journal
from tape.ledgers import effects, runs
from tape.ledgers.effects import Denied, Effect
from tape.proto import tape_pb2 as pb
from tape.server.grpc.binding import Context, owner_of, trace_of
from tape.server.grpc.checks import check_texts
from tape.server.grpc.effects import wanted_effect
from tape.server.grpc.messages import to_message
from tape.store import Transaction
from tape.telemetry.tracing import Trace


class AdvancingDoor:
    """Serves runs that go on from one effect to the next."""

    def __init__(self, journal: Journal) -> None:
        self._database = journal.database
        self._max_bytes = journal.max_payload_bytes

    async def advance_run(self, request: pb.AdvanceRunRequest, context: Context) -> pb.AdvanceRunResponse:
        """Take the lease, complete effects, begin the next one, end the run: whatever is asked for, all or none."""
        wanted = self._checked(request)
        trace, owner = trace_of(context), request.lease_owner or owner_of(context)
        outcome = await self._database.write(
            lambda tx: _advance(tx, request, wanted, owner, trace), size=request.ByteSize() + 1_024
        )
        if isinstance(outcome, Denied):
            raise outcome.error
        if outcome is None:
            return pb.AdvanceRunResponse()
        effect, existing = outcome
        return pb.AdvanceRunResponse(begun=to_message(pb.BeginEffectResponse, effect, existing=existing))

    def _checked(self, request: pb.AdvanceRunRequest) -> Effect | None:
        parts = [*request.complete]
        parts += [part for name in ("begin", "end") if request.HasField(name) for part in [getattr(request, name)]]
        for part in parts:
            if part.run_id != request.run_id:
                raise InvalidInput(
                    f"run_id {part.run_id!r} differs from {request.run_id!r}: all of it is about one run."
                )
        for each in request.complete:
            check_texts(self._max_bytes, response_json=each.response_json, error_json=each.error_json)
        if request.HasField("end"):
            check_texts(self._max_bytes, detail_json=request.end.detail_json)
        return wanted_effect(request.begin, self._max_bytes) if request.HasField("begin") else None


def _advance(
    tx: Transaction, request: pb.AdvanceRunRequest, wanted: Effect | None, owner: str, trace: Trace
) -> tuple[Effect, bool] | Denied | None:
    if request.lease_ttl_ms > 0:
        runs.resume(tx, request.run_id, owner=owner, lease_ms=request.lease_ttl_ms)
    for each in request.complete:
        effects.complete(
            tx,
            request.run_id,
            each.idempotency_key,
            each.status,
            response_json=each.response_json,
            error_json=each.error_json,
            owner=owner,
            trace=trace,
        )
    begun = effects.begin(tx, wanted, owner=owner, trace=trace) if wanted is not None else None
    if request.HasField("end"):
        runs.end(tx, request.run_id, request.end.status, detail_json=request.end.detail_json, owner=owner, trace=trace)
    return begun
