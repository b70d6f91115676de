"""The calls about runs: their leases, decisions, budgets, gates and timers. Each is named for its RPC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from tape.base.ids import new_id
from tape.client import rpcs
from tape.client.channel import ChannelCalls
from tape.proto import tape_pb2 as pb


class RunCalls(ChannelCalls):
    """Runs, decisions, budgets, gates and timers."""

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
        parent_run_id: str = "",
        on_parent_cancel: int = 0,
    ) -> pb.BeginRunResponse:
        """Begin a run, or resume the one with the same app, user, session and invocation.

        A run with a `parent_run_id` is cancelled with its parent, unless `on_parent_cancel` is CHILD_POLICY_LEAVE (2).
        """
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
            parent_run_id=parent_run_id,
            on_parent_cancel=cast("pb.ChildPolicy", on_parent_cancel),
        )
        return await self._channel.call(rpcs.BEGIN_RUN, request)

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
        """Several steps of a run in one commit, all or none: renew its lease, complete effects, begin one, end it.

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
        """Take a run's lease, or renew it; with `renew` only if the caller still holds it."""
        request = pb.ResumeRunRequest(run_id=run_id, lease_owner=lease_owner, lease_ttl_ms=lease_ttl_ms, renew=renew)
        return await self._channel.call(rpcs.RESUME_RUN, request)

    async def end_run(
        self, *, run_id: str, status: int | str = 4, detail_json: str = "", result_json: str = ""
    ) -> pb.EndRunResponse:
        """End a run; 4 is TERMINAL, which may have a result."""
        request = pb.EndRunRequest(
            run_id=run_id, status=cast("pb.RunStatus", status), detail_json=detail_json, result_json=result_json
        )
        return await self._channel.call(rpcs.END_RUN, request)

    async def get_run(self, run_id: str) -> pb.RunState:
        """The current state of a run."""
        request = pb.GetRunRequest(run_id=run_id)
        return await self._channel.call(rpcs.GET_RUN, request)

    async def list_runs(
        self,
        *,
        app_name: str = "",
        user_id: str = "",
        session_id: str = "",
        status: int | str = 0,
        before_started_at_ms: int = 0,
        before_run_id: str = "",
        limit: int = 100,
        parent_run_id: str = "",
    ) -> pb.ListRunsResponse:
        """Runs, the newest first, without results; the next page begins before the last run of this one."""
        request = pb.ListRunsRequest(
            app_name=app_name,
            user_id=user_id,
            session_id=session_id,
            status=cast("pb.RunStatus", status),
            before_started_at_ms=before_started_at_ms,
            before_run_id=before_run_id,
            limit=limit,
            parent_run_id=parent_run_id,
        )
        return await self._channel.call(rpcs.LIST_RUNS, request)

    async def list_runs_to_recover(
        self, *, limit: int = 100, now_ms: int = 0, app_name: str = ""
    ) -> pb.ListRunsToRecoverResponse:
        """Runs to resume: runnable, abandoned, or with an answered gate."""
        request = pb.ListRunsToRecoverRequest(limit=limit, now_ms=now_ms, app_name=app_name)
        return await self._channel.call(rpcs.LIST_RUNS_TO_RECOVER, request)

    async def list_compactable_runs(self, *, before_ms: int = 0, limit: int = 100) -> pb.ListCompactableRunsResponse:
        """Ended runs that were never compacted."""
        request = pb.ListCompactableRunsRequest(before_ms=before_ms, limit=limit)
        return await self._channel.call(rpcs.LIST_COMPACTABLE_RUNS, request)

    async def compact_run(self, run_id: str, *, ignore_unowed: bool = False) -> pb.CompactRunResponse:
        """Blank the payloads of a settled run's decisions and effects."""
        request = pb.CompactRunRequest(run_id=run_id, ignore_unowed=ignore_unowed)
        return await self._channel.call(rpcs.COMPACT_RUN, request)

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
        digest: str = "",
        position: str = "",
    ) -> pb.DecisionRecord:
        """Record a decision once; a repeat returns the recorded one."""
        request = pb.RecordDecisionRequest(
            run_id=run_id,
            decision_index=decision_index,
            model=model,
            request_json=request_json,
            response_json=response_json,
            rationale=rationale,
            policy_version=policy_version,
            digest=digest,
            position=position,
        )
        return await self._channel.call(rpcs.RECORD_DECISION, request)

    async def get_decision(self, *, run_id: str, decision_index: int, position: str = "") -> pb.GetDecisionResponse:
        """A decision, if it was recorded; else `displaced` names what the run recorded at the position."""
        request = pb.GetDecisionRequest(run_id=run_id, decision_index=decision_index, position=position)
        return await self._channel.call(rpcs.GET_DECISION, request)

    async def set_budget(self, *, run_id: str, usd_cap: float = 0.0, token_cap: int = 0) -> pb.BudgetState:
        """Set a run's caps; 0 is no cap."""
        request = pb.SetBudgetRequest(run_id=run_id, usd_cap=usd_cap, token_cap=token_cap)
        return await self._channel.call(rpcs.SET_BUDGET, request)

    async def admit_budget(
        self, *, run_id: str, usd_estimate: float = 0.0, token_estimate: int = 0
    ) -> pb.AdmitBudgetResponse:
        """Whether an estimate fits into what is left."""
        request = pb.AdmitBudgetRequest(run_id=run_id, usd_estimate=usd_estimate, token_estimate=token_estimate)
        return await self._channel.call(rpcs.ADMIT_BUDGET, request)

    async def charge_budget(self, *, run_id: str, usd: float = 0.0, tokens: int = 0) -> pb.BudgetState:
        """Add to a run's spending."""
        request = pb.ChargeBudgetRequest(run_id=run_id, usd=usd, tokens=tokens)
        return await self._channel.call(rpcs.CHARGE_BUDGET, request)

    async def await_signal(
        self,
        *,
        run_id: str,
        gate_name: str,
        payload_json: str = "",
        risk: str = "",
        timeout_ms: int = 0,
        on_timeout_json: str = "",
        remind_after_ms: int = 0,
        escalate_after_ms: int = 0,
    ) -> pb.AwaitSignalResponse:
        """The answer of a gate; without one the run parks there. The first call sets payload, risk and times."""
        request = pb.AwaitSignalRequest(
            run_id=run_id,
            gate_name=gate_name,
            payload_json=payload_json,
            risk=risk,
            timeout_ms=timeout_ms,
            on_timeout_json=on_timeout_json,
            remind_after_ms=remind_after_ms,
            escalate_after_ms=escalate_after_ms,
        )
        return await self._channel.call(rpcs.AWAIT_SIGNAL, request)

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
        """Answer a gate. Raises GateAnswered if it has another answer."""
        request = pb.SendSignalRequest(
            run_id=run_id,
            app_name=app_name,
            user_id=user_id,
            session_id=session_id,
            gate_name=gate_name,
            resolution_json=resolution_json,
        )
        return await self._channel.call(rpcs.SEND_SIGNAL, request)

    async def fork_run(
        self,
        run_id: str,
        *,
        at_decision: int = 0,
        at_seq: int = 0,
        decision_json: str = "",
        invocation_id: str = "",
        reason: str = "",
    ) -> pb.ForkRunResponse:
        """Begin a run that shares what another one recorded before a decision, or before a seq of its journal.

        With `decision_json` the decision has that response in the fork; without it the fork decides anew.
        """
        request = pb.ForkRunRequest(
            run_id=run_id,
            at_decision=at_decision,
            at_seq=at_seq,
            decision_json=decision_json,
            invocation_id=invocation_id or new_id(),
            reason=reason,
        )
        return await self._channel.call(rpcs.FORK_RUN, request)

    async def list_run_steps(self, run_id: str, *, cursor: str = "", limit: int = 0) -> pb.ListRunStepsResponse:
        """The decisions and effects of a run, oldest first; `next_cursor` is the `cursor` of the next page."""
        request = pb.ListRunStepsRequest(run_id=run_id, cursor=cursor, limit=limit)
        return await self._channel.call(rpcs.LIST_RUN_STEPS, request)

    async def list_gates(
        self,
        *,
        state: int | str = 0,
        app_name: str = "",
        risk: str = "",
        gate_name: str = "",
        run_id: str = "",
        deadline_before_ms: int = 0,
        limit: int = 50,
        cursor: str = "",
    ) -> pb.ListGatesResponse:
        """A page of gates; waiting ones oldest first, others newest first. `cursor` of a page gets the next one."""
        request = pb.ListGatesRequest(
            state=cast("pb.GateState", state),
            app_name=app_name,
            risk=risk,
            gate_name=gate_name,
            run_id=run_id,
            deadline_before_ms=deadline_before_ms,
            limit=limit,
            cursor=cursor,
        )
        return await self._channel.call(rpcs.LIST_GATES, request)

    async def sleep_run(self, *, run_id: str, timer_id: str, duration_ms: int) -> pb.SleepRunResponse:
        """Park a run until a time; `done` once the time has come. The first call with a `timer_id` sets the time."""
        request = pb.SleepRunRequest(run_id=run_id, timer_id=timer_id, duration_ms=duration_ms)
        return await self._channel.call(rpcs.SLEEP_RUN, request)

    async def set_timer(
        self, *, run_id: str, fire_at_ms: int, kind: str, timer_id: str = "", payload_json: str = ""
    ) -> pb.TimerRecord:
        """Set a timer."""
        request = pb.SetTimerRequest(
            run_id=run_id, fire_at_ms=fire_at_ms, kind=kind, timer_id=timer_id, payload_json=payload_json
        )
        return await self._channel.call(rpcs.SET_TIMER, request)

    async def cancel_timer(self, *, run_id: str, timer_id: str) -> pb.CancelTimerResponse:
        """Remove a timer."""
        request = pb.CancelTimerRequest(run_id=run_id, timer_id=timer_id)
        return await self._channel.call(rpcs.CANCEL_TIMER, request)

    async def list_due_timers(
        self, *, now_ms: int = 0, limit: int = 200, claim: bool = False, claimer: str = "", lease_ttl_ms: int = 60000
    ) -> pb.ListDueTimersResponse:
        """Due timers. `claim` removes them; with a `claimer` they are leased, and redelivered unless completed."""
        request = pb.ListDueTimersRequest(
            now_ms=now_ms, limit=limit, claim=claim, claimer=claimer, lease_ttl_ms=lease_ttl_ms
        )
        return await self._channel.call(rpcs.LIST_DUE_TIMERS, request)

    async def complete_timer(self, *, run_id: str, timer_id: str, claimer: str) -> pb.CompleteTimerResponse:
        """Complete a leased timer, so that it is not redelivered."""
        request = pb.CompleteTimerRequest(run_id=run_id, timer_id=timer_id, claimer=claimer)
        return await self._channel.call(rpcs.COMPLETE_TIMER, request)
