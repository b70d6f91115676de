"""The calls about effects, the outbox and obligations. Each is named for its RPC."""

from __future__ import annotations

from typing import cast

from tape.client import rpcs
from tape.client.channel import ChannelCalls
from tape.proto import tape_pb2 as pb


class EffectCalls(ChannelCalls):
    """Effects, the outbox and obligations."""

    async def begin_effect(
        self,
        *,
        run_id: str,
        decision_index: int,
        tool_name: str,
        call_index: int = 0,
        request_json: str = "",
        custom_key: str = "",
        semantics: int | str = 0,
        dispatch_mode: int | str = 0,
        business_key: str = "",
        connector: str = "",
        scope: str = "",
        digest: str = "",
        position: str = "",
        change_check: int | str = 0,
        after_seq: int = 0,
    ) -> pb.BeginEffectResponse:
        """Record an effect as PENDING before it is performed; one that exists is returned with its outcome.

        With a `change_check` the server compares the `position` of a new effect with the steps that the run recorded.
        """
        request = pb.BeginEffectRequest(
            run_id=run_id,
            decision_index=decision_index,
            tool_name=tool_name,
            call_index=call_index,
            request_json=request_json,
            custom_key=custom_key,
            semantics=cast("pb.EffectSemantics", semantics),
            dispatch_mode=cast("pb.EffectDispatchMode", dispatch_mode),
            business_key=business_key,
            connector=connector,
            scope=scope,
            digest=digest,
            position=position,
            change_check=cast("pb.ChangeCheck", change_check),
            after_seq=after_seq,
        )
        return await self._channel.call(rpcs.BEGIN_EFFECT, request)

    async def complete_effect(
        self, *, run_id: str, idempotency_key: str, status: int | str, response_json: str = "", error_json: str = ""
    ) -> pb.EffectRecord:
        """Settle a pending effect."""
        request = pb.CompleteEffectRequest(
            run_id=run_id,
            idempotency_key=idempotency_key,
            status=cast("pb.EffectStatus", status),
            response_json=response_json,
            error_json=error_json,
        )
        return await self._channel.call(rpcs.COMPLETE_EFFECT, request)

    async def get_effect(self, *, run_id: str, idempotency_key: str) -> pb.GetEffectResponse:
        """An effect, if it exists."""
        request = pb.GetEffectRequest(run_id=run_id, idempotency_key=idempotency_key)
        return await self._channel.call(rpcs.GET_EFFECT, request)

    async def reconcile_effect(
        self,
        *,
        run_id: str,
        idempotency_key: str,
        resolved_status: int | str,
        response_json: str = "",
        error_json: str = "",
    ) -> pb.EffectRecord:
        """Settle an effect whose outcome was left open."""
        request = pb.ReconcileEffectRequest(
            run_id=run_id,
            idempotency_key=idempotency_key,
            resolved_status=cast("pb.EffectStatus", resolved_status),
            response_json=response_json,
            error_json=error_json,
        )
        return await self._channel.call(rpcs.RECONCILE_EFFECT, request)

    async def list_effects_to_dispatch(
        self, *, now_ms: int = 0, connector: str = "", limit: int = 200
    ) -> pb.ListEffectsToDispatchResponse:
        """Outbox effects that are due and unclaimed, the longest due first."""
        request = pb.ListEffectsToDispatchRequest(now_ms=now_ms, connector=connector, limit=limit)
        return await self._channel.call(rpcs.LIST_EFFECTS_TO_DISPATCH, request)

    async def claim_effect_dispatch(
        self, *, run_id: str, idempotency_key: str, claimer: str, lease_ttl_ms: int = 60000, renew: bool = False
    ) -> pb.ClaimEffectDispatchResponse:
        """Claim an outbox effect, or renew a claim."""
        request = pb.ClaimEffectDispatchRequest(
            run_id=run_id, idempotency_key=idempotency_key, claimer=claimer, lease_ttl_ms=lease_ttl_ms, renew=renew
        )
        return await self._channel.call(rpcs.CLAIM_EFFECT_DISPATCH, request)

    async def record_dispatch_attempt(
        self,
        *,
        run_id: str,
        idempotency_key: str,
        error: str,
        next_dispatch_at_ms: int,
        claimer: str = "",
        certainty: int | str = 0,
    ) -> pb.EffectRecord:
        """Record a dispatch that did not succeed; with `next_dispatch_at_ms=0` the effect becomes UNKNOWN.

        `certainty` is DISPATCH_CERTAINTY_UNKNOWN if this attempt or an earlier one may have come through.
        """
        request = pb.RecordDispatchAttemptRequest(
            run_id=run_id,
            idempotency_key=idempotency_key,
            error=error,
            next_dispatch_at_ms=next_dispatch_at_ms,
            claimer=claimer,
            certainty=cast("pb.DispatchCertainty", certainty),
        )
        return await self._channel.call(rpcs.RECORD_DISPATCH_ATTEMPT, request)

    async def record_external_observation(
        self,
        *,
        run_id: str,
        idempotency_key: str,
        resolution: int | str,
        external_ref: str = "",
        response_json: str = "",
        error_json: str = "",
        compensate_on_duplicate_kind: str = "",
        claimer: str = "",
    ) -> pb.EffectRecord:
        """Record what the other side shows about an effect."""
        request = pb.RecordExternalObservationRequest(
            run_id=run_id,
            idempotency_key=idempotency_key,
            resolution=cast("pb.EffectResolution", resolution),
            external_ref=external_ref,
            response_json=response_json,
            error_json=error_json,
            compensate_on_duplicate_kind=compensate_on_duplicate_kind,
            claimer=claimer,
        )
        return await self._channel.call(rpcs.RECORD_EXTERNAL_OBSERVATION, request)

    async def list_pending_effects(
        self, *, older_than_ms: int = 0, include_pending: bool = True, include_unknown: bool = True, limit: int = 200
    ) -> pb.ListPendingEffectsResponse:
        """Open effects, oldest first: UNKNOWN ones, and PENDING ones older than `older_than_ms`."""
        request = pb.ListPendingEffectsRequest(
            older_than_ms=older_than_ms, include_pending=include_pending, include_unknown=include_unknown, limit=limit
        )
        return await self._channel.call(rpcs.LIST_PENDING_EFFECTS, request)

    async def register_compensation(
        self,
        *,
        run_id: str,
        effect_key: str,
        kind: str,
        payload_json: str = "",
        compensator_ref: str = "",
        max_attempts: int = 0,
    ) -> pb.ObligationRecord:
        """Register an obligation: what compensates an effect if its run fails."""
        request = pb.RegisterCompensationRequest(
            run_id=run_id,
            effect_key=effect_key,
            kind=kind,
            payload_json=payload_json,
            compensator_ref=compensator_ref,
            max_attempts=max_attempts,
        )
        return await self._channel.call(rpcs.REGISTER_COMPENSATION, request)

    async def list_obligations(
        self, *, run_id: str, only_unresolved: bool = True, status_filter: int | str = 0
    ) -> pb.ListObligationsResponse:
        """A run's obligations, the newest first."""
        request = pb.ListObligationsRequest(
            run_id=run_id, only_unresolved=only_unresolved, status_filter=cast("pb.ObligationStatus", status_filter)
        )
        return await self._channel.call(rpcs.LIST_OBLIGATIONS, request)

    async def list_unresolved_obligations(
        self,
        *,
        limit: int = 500,
        now_ms: int = 0,
        include_pending: bool = True,
        include_stuck: bool = False,
        include_committed_expired: bool = True,
        only_owed: bool = False,
    ) -> pb.ListUnresolvedObligationsResponse:
        """Open obligations of all runs."""
        request = pb.ListUnresolvedObligationsRequest(
            limit=limit,
            now_ms=now_ms,
            include_pending=include_pending,
            include_stuck=include_stuck,
            include_committed_expired=include_committed_expired,
            only_owed=only_owed,
        )
        return await self._channel.call(rpcs.LIST_UNRESOLVED_OBLIGATIONS, request)

    async def claim_obligation(
        self,
        *,
        run_id: str,
        obligation_seq: int,
        claimer: str,
        lease_ttl_ms: int = 60000,
        only_owed: bool = False,
        renew: bool = False,
    ) -> pb.ClaimObligationResponse:
        """Claim an obligation, or renew a claim; with `only_owed` only if it is owed and the newest of its run."""
        request = pb.ClaimObligationRequest(
            run_id=run_id,
            obligation_seq=obligation_seq,
            claimer=claimer,
            lease_ttl_ms=lease_ttl_ms,
            only_owed=only_owed,
            renew=renew,
        )
        return await self._channel.call(rpcs.CLAIM_OBLIGATION, request)

    async def record_obligation_attempt(
        self,
        *,
        run_id: str,
        obligation_seq: int,
        error: str,
        next_attempt_at_ms: int,
        settle_run: bool = False,
        claimer: str = "",
        uncounted: bool = False,
    ) -> pb.ObligationRecord:
        """Record an attempt that did not succeed; with `next_attempt_at_ms=0` the obligation becomes STUCK."""
        request = pb.RecordObligationAttemptRequest(
            run_id=run_id,
            obligation_seq=obligation_seq,
            error=error,
            next_attempt_at_ms=next_attempt_at_ms,
            settle_run=settle_run,
            claimer=claimer,
            uncounted=uncounted,
        )
        return await self._channel.call(rpcs.RECORD_OBLIGATION_ATTEMPT, request)

    async def resolve_obligation(
        self,
        *,
        run_id: str,
        obligation_seq: int,
        status: int | str,
        result_json: str = "",
        settle_run: bool = False,
        claimer: str = "",
    ) -> pb.ObligationRecord:
        """Settle an obligation; with `settle_run` also its run, when no obligation is left."""
        request = pb.ResolveObligationRequest(
            run_id=run_id,
            obligation_seq=obligation_seq,
            status=cast("pb.ObligationStatus", status),
            result_json=result_json,
            settle_run=settle_run,
            claimer=claimer,
        )
        return await self._channel.call(rpcs.RESOLVE_OBLIGATION, request)
