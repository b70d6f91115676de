"""The RPCs of effects and of obligations."""

from __future__ import annotations

from tape.engine.ledgers import effects, obligations, runs
from tape.engine.ledgers.effects import Denied, Effect
from tape.engine.ledgers.obligations import Obligation
from tape.journal.journal import Journal
from tape.model.ledger_states import ChangeCheck, DispatchCertainty, DispatchMode, EffectSemantics, EffectStatus, parse
from tape.proto import tape_pb2 as pb
from tape.server.grpc.checks import check_texts
from tape.server.grpc.messages import state, to_message
from tape.server.grpc.methods import Context, caller_of, owner_of, trace_of
from tape.store import Transaction


class EffectsService:
    """RPCs of effects, the outbox and compensation."""

    def __init__(self, journal: Journal) -> None:
        self._database = journal.database
        self._max_bytes = journal.max_payload_bytes

    async def begin_effect(self, request: pb.BeginEffectRequest, context: Context) -> pb.BeginEffectResponse:
        """Record an effect as pending, before it is performed."""
        wanted = wanted_effect(request, self._max_bytes)
        trace, owner, caller = trace_of(context), owner_of(context), caller_of(context)
        change_check, after_seq = parse(ChangeCheck, "change_check", request.change_check), request.after_seq
        begun = await self._database.write(
            lambda tx: effects.begin(
                tx, wanted, owner=owner, caller=caller, trace=trace, change_check=change_check, after_seq=after_seq
            ),
            size=request.ByteSize() + 512,
        )
        if isinstance(begun, Denied):
            raise begun.error
        return to_message(pb.BeginEffectResponse, begun.effect, existing=begun.existed, displaced=begun.displaced)

    async def complete_effect(self, request: pb.CompleteEffectRequest, context: Context) -> pb.EffectRecord:
        """Record the result of an effect."""
        check_texts(self._max_bytes, response_json=request.response_json, error_json=request.error_json)
        trace, owner = trace_of(context), owner_of(context)
        return _effect(
            await self._database.write(
                lambda tx: effects.complete(
                    tx,
                    request.run_id,
                    request.idempotency_key,
                    request.status,
                    response_json=request.response_json,
                    error_json=request.error_json,
                    owner=owner,
                    trace=trace,
                ),
                size=request.ByteSize() + 512,
            )
        )

    async def get_effect(self, request: pb.GetEffectRequest, context: Context) -> pb.GetEffectResponse:
        """An effect, if it was begun."""
        found = await self._database.read(lambda reader: effects.find(reader, request.run_id, request.idempotency_key))
        if found is None:
            return pb.GetEffectResponse(found=False)
        return pb.GetEffectResponse(found=True, effect=_effect(found))

    async def reconcile_effect(self, request: pb.ReconcileEffectRequest, context: Context) -> pb.EffectRecord:
        """Settle an effect that was left pending or unknown."""
        check_texts(self._max_bytes, response_json=request.response_json, error_json=request.error_json)
        trace = trace_of(context)
        return _effect(
            await self._database.write(
                lambda tx: effects.reconcile(
                    tx,
                    request.run_id,
                    request.idempotency_key,
                    request.resolved_status,
                    response_json=request.response_json,
                    error_json=request.error_json,
                    trace=trace,
                )
            )
        )

    async def record_external_observation(
        self, request: pb.RecordExternalObservationRequest, context: Context
    ) -> pb.EffectRecord:
        """Record what the external system reports about an effect."""
        check_texts(
            self._max_bytes,
            response_json=request.response_json,
            error_json=request.error_json,
            external_ref=request.external_ref,
        )
        trace = trace_of(context)
        return _effect(
            await self._database.write(
                lambda tx: effects.observe(
                    tx,
                    request.run_id,
                    request.idempotency_key,
                    request.resolution,
                    external_ref=request.external_ref,
                    response_json=request.response_json,
                    error_json=request.error_json,
                    compensate_kind=request.compensate_on_duplicate_kind,
                    claimer=request.claimer,
                    trace=trace,
                )
            )
        )

    async def list_pending_effects(
        self, request: pb.ListPendingEffectsRequest, context: Context
    ) -> pb.ListPendingEffectsResponse:
        """Effects that are pending or unknown, oldest first."""
        found = await self._database.read(
            lambda reader: effects.list_open(
                reader,
                older_than_ms=request.older_than_ms,
                pending=request.include_pending,
                unknown=request.include_unknown,
                limit=request.limit,
            )
        )
        return pb.ListPendingEffectsResponse(effects=map(_effect, found))

    # ── the outbox ───────────────────────────────────────────────────────────────────────────────

    async def list_effects_to_dispatch(
        self, request: pb.ListEffectsToDispatchRequest, context: Context
    ) -> pb.ListEffectsToDispatchResponse:
        """Outbox effects that are due and unclaimed."""
        found = await self._database.read(
            lambda reader: effects.list_dispatchable(
                reader, now=request.now_ms, connector=request.connector, limit=request.limit
            )
        )
        return pb.ListEffectsToDispatchResponse(effects=map(_effect, found))

    async def claim_effect_dispatch(
        self, request: pb.ClaimEffectDispatchRequest, context: Context
    ) -> pb.ClaimEffectDispatchResponse:
        """Claim an outbox effect."""
        claim = await self._database.write(
            lambda tx: effects.claim(
                tx,
                request.run_id,
                request.idempotency_key,
                claimer=request.claimer,
                lease_ms=request.lease_ttl_ms,
                renew=request.renew,
            )
        )
        return pb.ClaimEffectDispatchResponse(
            acquired=claim.acquired,
            effect=_effect(claim.effect) if claim.effect else None,
            previous_claimer=claim.previous_claimer,
        )

    async def record_dispatch_attempt(
        self, request: pb.RecordDispatchAttemptRequest, context: Context
    ) -> pb.EffectRecord:
        """Record a dispatch that did not succeed."""
        check_texts(self._max_bytes, error=request.error)
        certainty = parse(DispatchCertainty, "certainty", request.certainty)
        trace = trace_of(context)
        return _effect(
            await self._database.write(
                lambda tx: effects.record_attempt(
                    tx,
                    request.run_id,
                    request.idempotency_key,
                    error=request.error,
                    next_at_ms=request.next_dispatch_at_ms,
                    certainty=certainty,
                    claimer=request.claimer,
                    trace=trace,
                )
            )
        )

    # ── obligations ──────────────────────────────────────────────────────────────────────────────

    async def register_compensation(
        self, request: pb.RegisterCompensationRequest, context: Context
    ) -> pb.ObligationRecord:
        """Register an obligation to compensate."""
        check_texts(self._max_bytes, payload_json=request.payload_json, compensator_ref=request.compensator_ref)
        trace, owner = trace_of(context), owner_of(context)

        def register(tx: Transaction) -> Obligation:
            return obligations.register(
                tx,
                runs.get_writable(tx, request.run_id, owner),
                effect_key=request.effect_key,
                kind=request.kind,
                payload_json=request.payload_json,
                compensator_ref=request.compensator_ref,
                max_attempts=request.max_attempts,
                trace=trace,
            )

        return _obligation(await self._database.write(register))

    async def list_obligations(
        self, request: pb.ListObligationsRequest, context: Context
    ) -> pb.ListObligationsResponse:
        """A run's obligations, the newest first."""
        found = await self._database.read(
            lambda reader: obligations.list_of_run(
                reader, request.run_id, only_unresolved=request.only_unresolved, status=request.status_filter
            )
        )
        return pb.ListObligationsResponse(obligations=map(_obligation, found))

    async def list_unresolved_obligations(
        self, request: pb.ListUnresolvedObligationsRequest, context: Context
    ) -> pb.ListUnresolvedObligationsResponse:
        """Unresolved obligations of all runs."""
        found = await self._database.read(
            lambda reader: obligations.list_unresolved(
                reader,
                now=request.now_ms,
                pending=request.include_pending,
                stuck=request.include_stuck,
                abandoned=request.include_committed_expired,
                only_owed=request.only_owed,
                limit=request.limit,
            )
        )
        return pb.ListUnresolvedObligationsResponse(obligations=map(_obligation, found))

    async def claim_obligation(
        self, request: pb.ClaimObligationRequest, context: Context
    ) -> pb.ClaimObligationResponse:
        """Claim an obligation."""
        trace = trace_of(context)
        obligation, acquired = await self._database.write(
            lambda tx: obligations.claim(
                tx,
                request.run_id,
                request.obligation_seq,
                claimer=request.claimer,
                lease_ms=request.lease_ttl_ms,
                only_owed=request.only_owed,
                renew=request.renew,
                trace=trace,
            )
        )
        return pb.ClaimObligationResponse(acquired=acquired, obligation=_obligation(obligation) if obligation else None)

    async def record_obligation_attempt(
        self, request: pb.RecordObligationAttemptRequest, context: Context
    ) -> pb.ObligationRecord:
        """Record an attempt that did not succeed."""
        check_texts(self._max_bytes, error=request.error)
        trace = trace_of(context)
        return _obligation(
            await self._database.write(
                lambda tx: obligations.record_attempt(
                    tx,
                    request.run_id,
                    request.obligation_seq,
                    error=request.error,
                    next_at_ms=request.next_attempt_at_ms,
                    settle_run=request.settle_run,
                    claimer=request.claimer,
                    uncounted=request.uncounted,
                    trace=trace,
                )
            )
        )

    async def resolve_obligation(self, request: pb.ResolveObligationRequest, context: Context) -> pb.ObligationRecord:
        """Settle an obligation."""
        check_texts(self._max_bytes, result_json=request.result_json)
        trace = trace_of(context)
        return _obligation(
            await self._database.write(
                lambda tx: obligations.resolve(
                    tx,
                    request.run_id,
                    request.obligation_seq,
                    request.status,
                    result_json=request.result_json,
                    settle_run=request.settle_run,
                    claimer=request.claimer,
                    trace=trace,
                )
            )
        )


def wanted_effect(request: pb.BeginEffectRequest, max_bytes: int) -> Effect:
    """The effect that a request begins, validated."""
    check_texts(max_bytes, request_json=request.request_json)
    key = request.custom_key or effects.key_of(
        request.run_id, request.decision_index, request.tool_name, request.call_index
    )
    wanted = Effect(
        run_id=request.run_id,
        seq=0,
        decision_index=request.decision_index,
        tool_name=request.tool_name,
        idempotency_key=key,
        status=EffectStatus.PENDING,
        request_json=request.request_json,
        semantics=state(EffectSemantics, "semantics", request.semantics, EffectSemantics.IDEMPOTENT),
        dispatch_mode=state(DispatchMode, "dispatch_mode", request.dispatch_mode, DispatchMode.INLINE),
        business_key=request.business_key,
        connector=request.connector,
        scope=request.scope,
        digest=request.digest,
        position=request.position,
    )
    effects.check(wanted)
    return wanted


def _effect(effect: Effect) -> pb.EffectRecord:
    return to_message(pb.EffectRecord, effect)


def _obligation(obligation: Obligation) -> pb.ObligationRecord:
    return to_message(pb.ObligationRecord, obligation)
