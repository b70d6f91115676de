"""The calls about runs and what belongs to them, each named for its RPC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tape.proto import tape_pb2 as pb


class LedgerCalls:
    """Runs, decisions, effects, obligations, budgets, gates, timers and sessions."""

    async def _call(self, name: str, request: Any) -> Any:
        raise NotImplementedError

    async def _advance(self, move: pb.AdvanceRunRequest) -> pb.AdvanceRunResponse:
        raise NotImplementedError

    async def begin_run(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        invocation_id: str,
        lease_owner: str = "",
        lease_ttl_ms: int = 120000,
        tenant_id: str = "",
        actor: str = "",
        subject: str = "",
        agent_id: str = "",
        aiplex_instance_id: str = "",
        gateway_route: str = "",
        scopes: Sequence[str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> pb.BeginRunResponse:
        """Begin a run, or take up the one with the same four ids."""
        request = pb.BeginRunRequest(
            app_name=app_name,
            user_id=user_id,
            session_id=session_id,
            invocation_id=invocation_id,
            lease_owner=lease_owner,
            lease_ttl_ms=lease_ttl_ms,
            tenant_id=tenant_id,
            actor=actor,
            subject=subject,
            agent_id=agent_id,
            aiplex_instance_id=aiplex_instance_id,
            gateway_route=gateway_route,
            scopes=scopes,
            labels=labels,
        )
        return await self._call("BeginRun", request)  # type: ignore[no-any-return]

    async def advance_run(
        self,
        run_id: str,
        *,
        lease_owner: str = "",
        lease_ttl_ms: int = 0,
        complete: Sequence[pb.CompleteEffectRequest] = (),
        begin: pb.BeginEffectRequest | None = None,
        end: pb.EndRunRequest | None = None,
    ) -> pb.AdvanceRunResponse:
        """Several steps of a run in one commit, all or none: take its lease, complete effects, begin one, end it.

        Concurrent callers share messages and commits.
        """
        request = pb.AdvanceRunRequest(
            run_id=run_id,
            lease_owner=lease_owner,
            lease_ttl_ms=lease_ttl_ms,
            complete=complete,
            begin=begin,
            end=end,
        )
        return await self._advance(request)

    async def resume_run(
        self, *, run_id: str, lease_owner: str = "", lease_ttl_ms: int = 120000, renew: bool = False
    ) -> pb.ResumeRunResponse:
        """Take a run's lease, or renew it; with `renew` only if it is the caller's still."""
        request = pb.ResumeRunRequest(run_id=run_id, lease_owner=lease_owner, lease_ttl_ms=lease_ttl_ms, renew=renew)
        return await self._call("ResumeRun", request)  # type: ignore[no-any-return]

    async def end_run(self, *, run_id: str, status: Any = 4, detail_json: str = "") -> pb.EndRunResponse:
        """End a run; 4 is TERMINAL."""
        request = pb.EndRunRequest(run_id=run_id, status=status, detail_json=detail_json)
        return await self._call("EndRun", request)  # type: ignore[no-any-return]

    async def get_run(self, run_id: str) -> pb.RunState:
        """A run as it stands."""
        request = pb.GetRunRequest(run_id=run_id)
        return await self._call("GetRun", request)  # type: ignore[no-any-return]

    async def list_runs(
        self,
        *,
        app_name: str = "",
        user_id: str = "",
        session_id: str = "",
        status: Any = 0,
        before_started_at_ms: int = 0,
        before_run_id: str = "",
        limit: int = 100,
    ) -> pb.ListRunsResponse:
        """Runs, the newest first; the next page begins before the last run of this one."""
        request = pb.ListRunsRequest(
            app_name=app_name,
            user_id=user_id,
            session_id=session_id,
            status=status,
            before_started_at_ms=before_started_at_ms,
            before_run_id=before_run_id,
            limit=limit,
        )
        return await self._call("ListRuns", request)  # type: ignore[no-any-return]

    async def list_runs_to_recover(
        self, *, limit: int = 100, now_ms: int = 0, app_name: str = ""
    ) -> pb.ListRunsToRecoverResponse:
        """Runs that somebody should carry on."""
        request = pb.ListRunsToRecoverRequest(limit=limit, now_ms=now_ms, app_name=app_name)
        return await self._call("ListRunsToRecover", request)  # type: ignore[no-any-return]

    async def list_compactable_runs(self, *, before_ms: int = 0, limit: int = 100) -> pb.ListCompactableRunsResponse:
        """Ended runs that were never compacted."""
        request = pb.ListCompactableRunsRequest(before_ms=before_ms, limit=limit)
        return await self._call("ListCompactableRuns", request)  # type: ignore[no-any-return]

    async def compact_run(self, run_id: str, *, ignore_unowed: bool = False) -> pb.CompactRunResponse:
        """Blank what a settled run's decisions and effects said."""
        request = pb.CompactRunRequest(run_id=run_id, ignore_unowed=ignore_unowed)
        return await self._call("CompactRun", request)  # type: ignore[no-any-return]

    async def record_decision(
        self,
        *,
        run_id: str,
        decision_index: int,
        model: str = "",
        request_json: str = "",
        response_json: str = "",
        rationale: str = "",
        policy_version: str = "",
    ) -> pb.DecisionRecord:
        """Record a decision once; a repeat gets what is there."""
        request = pb.RecordDecisionRequest(
            run_id=run_id,
            decision_index=decision_index,
            model=model,
            request_json=request_json,
            response_json=response_json,
            rationale=rationale,
            policy_version=policy_version,
        )
        return await self._call("RecordDecision", request)  # type: ignore[no-any-return]

    async def get_decision(self, *, run_id: str, decision_index: int) -> pb.GetDecisionResponse:
        """A decision, if it was made."""
        request = pb.GetDecisionRequest(run_id=run_id, decision_index=decision_index)
        return await self._call("GetDecision", request)  # type: ignore[no-any-return]

    async def begin_effect(
        self,
        *,
        run_id: str,
        decision_index: int,
        tool_name: str,
        call_index: int = 0,
        request_json: str = "",
        custom_key: str = "",
        semantics: Any = 0,
        dispatch_mode: Any = 0,
        business_key: str = "",
        connector: str = "",
        scope: str = "",
    ) -> pb.BeginEffectResponse:
        """Begin an effect before it is carried out."""
        request = pb.BeginEffectRequest(
            run_id=run_id,
            decision_index=decision_index,
            tool_name=tool_name,
            call_index=call_index,
            request_json=request_json,
            custom_key=custom_key,
            semantics=semantics,
            dispatch_mode=dispatch_mode,
            business_key=business_key,
            connector=connector,
            scope=scope,
        )
        return await self._call("BeginEffect", request)  # type: ignore[no-any-return]

    async def complete_effect(
        self, *, run_id: str, idempotency_key: str, status: Any, response_json: str = "", error_json: str = ""
    ) -> pb.EffectRecord:
        """Say how an effect went."""
        request = pb.CompleteEffectRequest(
            run_id=run_id,
            idempotency_key=idempotency_key,
            status=status,
            response_json=response_json,
            error_json=error_json,
        )
        return await self._call("CompleteEffect", request)  # type: ignore[no-any-return]

    async def get_effect(self, *, run_id: str, idempotency_key: str) -> pb.GetEffectResponse:
        """An effect, if it was begun."""
        request = pb.GetEffectRequest(run_id=run_id, idempotency_key=idempotency_key)
        return await self._call("GetEffect", request)  # type: ignore[no-any-return]

    async def reconcile_effect(
        self, *, run_id: str, idempotency_key: str, resolved_status: Any, response_json: str = "", error_json: str = ""
    ) -> pb.EffectRecord:
        """Decide what became of an effect that was left open."""
        request = pb.ReconcileEffectRequest(
            run_id=run_id,
            idempotency_key=idempotency_key,
            resolved_status=resolved_status,
            response_json=response_json,
            error_json=error_json,
        )
        return await self._call("ReconcileEffect", request)  # type: ignore[no-any-return]

    async def list_effects_to_dispatch(
        self, *, now_ms: int = 0, connector: str = "", limit: int = 200
    ) -> pb.ListEffectsToDispatchResponse:
        """Outbox effects that are due and unclaimed."""
        request = pb.ListEffectsToDispatchRequest(now_ms=now_ms, connector=connector, limit=limit)
        return await self._call("ListEffectsToDispatch", request)  # type: ignore[no-any-return]

    async def claim_effect_dispatch(
        self, *, run_id: str, idempotency_key: str, claimer: str, lease_ttl_ms: int = 60000, renew: bool = False
    ) -> pb.ClaimEffectDispatchResponse:
        """Claim an outbox effect, or renew a claim."""
        request = pb.ClaimEffectDispatchRequest(
            run_id=run_id, idempotency_key=idempotency_key, claimer=claimer, lease_ttl_ms=lease_ttl_ms, renew=renew
        )
        return await self._call("ClaimEffectDispatch", request)  # type: ignore[no-any-return]

    async def record_dispatch_attempt(
        self, *, run_id: str, idempotency_key: str, error: str, next_dispatch_at_ms: int, claimer: str = ""
    ) -> pb.EffectRecord:
        """Record a dispatch that did not succeed; without a next time it becomes UNKNOWN."""
        request = pb.RecordDispatchAttemptRequest(
            run_id=run_id,
            idempotency_key=idempotency_key,
            error=error,
            next_dispatch_at_ms=next_dispatch_at_ms,
            claimer=claimer,
        )
        return await self._call("RecordDispatchAttempt", request)  # type: ignore[no-any-return]

    async def record_external_observation(
        self,
        *,
        run_id: str,
        idempotency_key: str,
        resolution: Any,
        external_ref: str = "",
        response_json: str = "",
        error_json: str = "",
        compensate_on_duplicate_kind: str = "",
        claimer: str = "",
    ) -> pb.EffectRecord:
        """Record what the outside world shows about an effect."""
        request = pb.RecordExternalObservationRequest(
            run_id=run_id,
            idempotency_key=idempotency_key,
            resolution=resolution,
            external_ref=external_ref,
            response_json=response_json,
            error_json=error_json,
            compensate_on_duplicate_kind=compensate_on_duplicate_kind,
            claimer=claimer,
        )
        return await self._call("RecordExternalObservation", request)  # type: ignore[no-any-return]

    async def list_pending_effects(
        self, *, older_than_ms: int = 0, include_pending: bool = True, include_unknown: bool = True, limit: int = 200
    ) -> pb.ListPendingEffectsResponse:
        """Effects whose outcome nobody knows."""
        request = pb.ListPendingEffectsRequest(
            older_than_ms=older_than_ms, include_pending=include_pending, include_unknown=include_unknown, limit=limit
        )
        return await self._call("ListPendingEffects", request)  # type: ignore[no-any-return]

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
        """Take on an obligation."""
        request = pb.RegisterCompensationRequest(
            run_id=run_id,
            effect_key=effect_key,
            kind=kind,
            payload_json=payload_json,
            compensator_ref=compensator_ref,
            max_attempts=max_attempts,
        )
        return await self._call("RegisterCompensation", request)  # type: ignore[no-any-return]

    async def list_obligations(
        self, *, run_id: str, only_unresolved: bool = True, status_filter: Any = 0
    ) -> pb.ListObligationsResponse:
        """A run's obligations, the newest first."""
        request = pb.ListObligationsRequest(run_id=run_id, only_unresolved=only_unresolved, status_filter=status_filter)
        return await self._call("ListObligations", request)  # type: ignore[no-any-return]

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
        """Obligations of all runs that somebody should see to."""
        request = pb.ListUnresolvedObligationsRequest(
            limit=limit,
            now_ms=now_ms,
            include_pending=include_pending,
            include_stuck=include_stuck,
            include_committed_expired=include_committed_expired,
            only_owed=only_owed,
        )
        return await self._call("ListUnresolvedObligations", request)  # type: ignore[no-any-return]

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
        """Claim an obligation, or renew a claim; with `only_owed` only if it is its turn."""
        request = pb.ClaimObligationRequest(
            run_id=run_id,
            obligation_seq=obligation_seq,
            claimer=claimer,
            lease_ttl_ms=lease_ttl_ms,
            only_owed=only_owed,
            renew=renew,
        )
        return await self._call("ClaimObligation", request)  # type: ignore[no-any-return]

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
        """Record an attempt that did not succeed; without a next time it is STUCK."""
        request = pb.RecordObligationAttemptRequest(
            run_id=run_id,
            obligation_seq=obligation_seq,
            error=error,
            next_attempt_at_ms=next_attempt_at_ms,
            settle_run=settle_run,
            claimer=claimer,
            uncounted=uncounted,
        )
        return await self._call("RecordObligationAttempt", request)  # type: ignore[no-any-return]

    async def resolve_obligation(
        self,
        *,
        run_id: str,
        obligation_seq: int,
        status: Any,
        result_json: str = "",
        settle_run: bool = False,
        claimer: str = "",
    ) -> pb.ObligationRecord:
        """Settle an obligation; with `settle_run` the run with it, when nothing is left to undo."""
        request = pb.ResolveObligationRequest(
            run_id=run_id,
            obligation_seq=obligation_seq,
            status=status,
            result_json=result_json,
            settle_run=settle_run,
            claimer=claimer,
        )
        return await self._call("ResolveObligation", request)  # type: ignore[no-any-return]

    async def set_budget(self, *, run_id: str, usd_cap: float = 0.0, token_cap: int = 0) -> pb.BudgetState:
        """Set a run's caps; 0 is no cap."""
        request = pb.SetBudgetRequest(run_id=run_id, usd_cap=usd_cap, token_cap=token_cap)
        return await self._call("SetBudget", request)  # type: ignore[no-any-return]

    async def admit_budget(
        self, *, run_id: str, usd_estimate: float = 0.0, token_estimate: int = 0
    ) -> pb.AdmitBudgetResponse:
        """Whether an estimate fits into what is left."""
        request = pb.AdmitBudgetRequest(run_id=run_id, usd_estimate=usd_estimate, token_estimate=token_estimate)
        return await self._call("AdmitBudget", request)  # type: ignore[no-any-return]

    async def charge_budget(self, *, run_id: str, usd: float = 0.0, tokens: int = 0) -> pb.BudgetState:
        """Add to what a run has spent."""
        request = pb.ChargeBudgetRequest(run_id=run_id, usd=usd, tokens=tokens)
        return await self._call("ChargeBudget", request)  # type: ignore[no-any-return]

    async def await_signal(self, *, run_id: str, gate_name: str, payload_json: str = "") -> pb.AwaitSignalResponse:
        """The answer of a gate, or the run parks there."""
        request = pb.AwaitSignalRequest(run_id=run_id, gate_name=gate_name, payload_json=payload_json)
        return await self._call("AwaitSignal", request)  # type: ignore[no-any-return]

    async def send_signal(
        self,
        *,
        run_id: str = "",
        app_name: str = "",
        user_id: str = "",
        session_id: str = "",
        gate_name: str,
        resolution_json: str = "",
    ) -> pb.SendSignalResponse:
        """Answer a gate."""
        request = pb.SendSignalRequest(
            run_id=run_id,
            app_name=app_name,
            user_id=user_id,
            session_id=session_id,
            gate_name=gate_name,
            resolution_json=resolution_json,
        )
        return await self._call("SendSignal", request)  # type: ignore[no-any-return]

    async def set_timer(
        self, *, run_id: str, fire_at_ms: int, kind: str, timer_id: str = "", payload_json: str = ""
    ) -> pb.TimerRecord:
        """Set a timer."""
        request = pb.SetTimerRequest(
            run_id=run_id, fire_at_ms=fire_at_ms, kind=kind, timer_id=timer_id, payload_json=payload_json
        )
        return await self._call("SetTimer", request)  # type: ignore[no-any-return]

    async def cancel_timer(self, *, run_id: str, timer_id: str) -> pb.CancelTimerResponse:
        """Remove a timer."""
        request = pb.CancelTimerRequest(run_id=run_id, timer_id=timer_id)
        return await self._call("CancelTimer", request)  # type: ignore[no-any-return]

    async def list_due_timers(
        self, *, now_ms: int = 0, limit: int = 200, claim: bool = False, claimer: str = "", lease_ttl_ms: int = 60000
    ) -> pb.ListDueTimersResponse:
        """Due timers; a claimed one is nobody else's, and with a claimer it comes again unless it is completed."""
        request = pb.ListDueTimersRequest(
            now_ms=now_ms, limit=limit, claim=claim, claimer=claimer, lease_ttl_ms=lease_ttl_ms
        )
        return await self._call("ListDueTimers", request)  # type: ignore[no-any-return]

    async def complete_timer(self, *, run_id: str, timer_id: str, claimer: str) -> pb.CompleteTimerResponse:
        """Say that a leased timer has been acted on."""
        request = pb.CompleteTimerRequest(run_id=run_id, timer_id=timer_id, claimer=claimer)
        return await self._call("CompleteTimer", request)  # type: ignore[no-any-return]

    async def create_session(
        self, *, app_name: str, user_id: str, session_id: str = "", state_json: str = "{}", if_absent: bool = False
    ) -> pb.Session:
        """Create a session, or replace the state of one; SessionExists if it must not be there and is."""
        request = pb.CreateSessionRequest(
            app_name=app_name, user_id=user_id, session_id=session_id, state_json=state_json, if_absent=if_absent
        )
        return await self._call("CreateSession", request)  # type: ignore[no-any-return]

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, max_events: int = 0
    ) -> pb.GetSessionResponse:
        """A session with its events, all or the latest."""
        request = pb.GetSessionRequest(app_name=app_name, user_id=user_id, session_id=session_id, max_events=max_events)
        return await self._call("GetSession", request)  # type: ignore[no-any-return]

    async def list_sessions(self, *, app_name: str, user_id: str = "") -> pb.ListSessionsResponse:
        """An app's sessions, the latest first."""
        request = pb.ListSessionsRequest(app_name=app_name, user_id=user_id)
        return await self._call("ListSessions", request)  # type: ignore[no-any-return]

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> pb.DeleteSessionResponse:
        """Remove a session and its events."""
        request = pb.DeleteSessionRequest(app_name=app_name, user_id=user_id, session_id=session_id)
        return await self._call("DeleteSession", request)  # type: ignore[no-any-return]

    async def append_event(
        self, *, app_name: str, user_id: str, session_id: str, event: pb.EventRecord, state_delta_json: str = "{}"
    ) -> pb.AppendEventResponse:
        """Append an event and merge its state delta."""
        request = pb.AppendEventRequest(
            app_name=app_name, user_id=user_id, session_id=session_id, event=event, state_delta_json=state_delta_json
        )
        return await self._call("AppendEvent", request)  # type: ignore[no-any-return]
