"""The RPCs of runs, decisions and budgets."""

from __future__ import annotations

import msgspec

from tape.engine.ledgers import budgets, children, compaction, decisions, gate_list, run_results, runs, steps
from tape.engine.ledgers.decisions import Decision
from tape.engine.ledgers.run_record import Run
from tape.journal.journal import Journal
from tape.model.entry import Draft
from tape.model.ledger_states import ChildPolicy, RunStatus, parse
from tape.model.principal import current_principal
from tape.proto import tape_pb2 as pb
from tape.server.grpc.checks import check_texts
from tape.server.grpc.gates import gate_record
from tape.server.grpc.messages import to_message
from tape.server.grpc.methods import Context, caller_of, is_operator, owner_of, trace_of
from tape.store import Reader


class RunsService:
    """RPCs of runs and their ledgers."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._database = journal.database
        self._max_bytes = journal.max_payload_bytes

    async def begin_run(self, request: pb.BeginRunRequest, context: Context) -> pb.BeginRunResponse:
        """Begin a run, or resume the one with the same ids."""
        wanted = Run(
            run_id="",
            app_name=request.app_name,
            user_id=request.user_id,
            session_id=request.session_id,
            invocation_id=request.invocation_id,
            status=RunStatus.RUNNING,
            tenant_id=current_principal().tenant_for(request.tenant_id),
            actor=request.actor,
            subject=request.subject,
            agent_id=request.agent_id,
            aiplex_instance_id=request.aiplex_instance_id,
            gateway_route=request.gateway_route,
            scopes_json=msgspec.json.encode(list(request.scopes)).decode(),
            labels_json=msgspec.json.encode(dict(request.labels)).decode(),
            parent_run_id=request.parent_run_id,
            on_parent_cancel=parse(ChildPolicy, "on_parent_cancel", request.on_parent_cancel),
        )
        trace = trace_of(context)
        owner, caller = request.lease_owner or owner_of(context), caller_of(context)
        run, resumed = await self._database.write(
            lambda tx: runs.begin(tx, wanted, owner=owner, caller=caller, lease_ms=request.lease_ttl_ms, trace=trace)
        )
        return to_message(pb.BeginRunResponse, run, resumed=resumed, next_seq=run.seq_cursor if resumed else 0)

    async def resume_run(self, request: pb.ResumeRunRequest, context: Context) -> pb.ResumeRunResponse:
        """Take or renew a run's lease."""
        owner, caller = request.lease_owner or owner_of(context), caller_of(context)
        run = await self._database.write(
            lambda tx: runs.resume(
                tx, request.run_id, owner=owner, caller=caller, lease_ms=request.lease_ttl_ms, renew=request.renew
            )
        )
        return pb.ResumeRunResponse(run=run_state(run))

    async def end_run(self, request: pb.EndRunRequest, context: Context) -> pb.EndRunResponse:
        """End a run. The runs below a cancelled one are cancelled in transactions of 200."""
        check_texts(self._max_bytes, detail_json=request.detail_json, result_json=request.result_json)
        run_results.check_result(request.result_json)
        facts_json = await self._screened(
            request, run_results.facts_json(request.status, request.detail_json, request.result_json)
        )
        trace, owner = trace_of(context), owner_of(context)
        # An operator looks after runs from outside: it names no lease owner, and needs no lease to cancel one.
        is_cancelled_from_outside = request.status == pb.RUN_STATUS_CANCELLED and not owner and is_operator()
        caller = "" if is_cancelled_from_outside else caller_of(context)
        run = await self._database.write(
            lambda tx: runs.end(
                tx,
                request.run_id,
                request.status,
                detail_json=request.detail_json,
                result_json=request.result_json,
                facts_json=facts_json,
                owner=owner,
                caller=caller,
                may_end_parked=is_cancelled_from_outside,
                trace=trace,
            ),
            size=request.ByteSize() + len(facts_json),
        )
        if run.status == RunStatus.CANCELLED:
            while await self._database.write(lambda tx: children.cancel_children(tx, request.run_id, trace=trace)):
                pass
        return pb.EndRunResponse(run=run_state(run))

    async def _screened(self, request: pb.EndRunRequest, facts_json: str) -> str:
        """What the entry of the end says, with secrets hidden and large fields in the object store."""
        screen = self._journal.screen
        if not facts_json or screen is None:
            return facts_json
        run = await self._database.read(lambda reader: runs.get(reader, request.run_id))
        draft = Draft(
            subject=runs.subject_of(run, "ended"),
            kind="run",
            payload_json=facts_json,
            tenant=run.tenant,
            user=run.user_id,
            session=run.session_id,
        )
        return (await screen([draft]))[0].payload_json

    async def get_run(self, request: pb.GetRunRequest, context: Context) -> pb.RunState:
        """The current state of a run, with its gates."""
        run, (gates, more) = await self._database.read(
            lambda reader: (runs.get(reader, request.run_id), gate_list.gates_of_run(reader, request.run_id))
        )
        state = run_state(run)
        state.gates.extend(map(gate_record, gates))
        state.more_gates = more
        return state

    async def list_runs_to_recover(
        self, request: pb.ListRunsToRecoverRequest, context: Context
    ) -> pb.ListRunsToRecoverResponse:
        """Runs without a valid lease that a recovery worker should resume."""
        found = await self._database.read(
            lambda reader: runs.list_recoverable(
                reader, app_name=request.app_name, now=request.now_ms, limit=request.limit
            )
        )
        return pb.ListRunsToRecoverResponse(runs=map(_listed, found))

    async def list_runs(self, request: pb.ListRunsRequest, context: Context) -> pb.ListRunsResponse:
        """Runs, the newest first."""
        found = await self._database.read(
            lambda reader: runs.list_newest_first(
                reader,
                app_name=request.app_name,
                user_id=request.user_id,
                session_id=request.session_id,
                status=request.status,
                parent_run_id=request.parent_run_id,
                before=(request.before_started_at_ms, request.before_run_id),
                limit=request.limit,
            )
        )
        return pb.ListRunsResponse(runs=map(_listed, found))

    async def list_compactable_runs(
        self, request: pb.ListCompactableRunsRequest, context: Context
    ) -> pb.ListCompactableRunsResponse:
        """Ended runs that were never compacted."""
        found = await self._database.read(
            lambda reader: compaction.list_compactable(reader, before_ms=request.before_ms, limit=request.limit)
        )
        return pb.ListCompactableRunsResponse(runs=map(_listed, found))

    async def compact_run(self, request: pb.CompactRunRequest, context: Context) -> pb.CompactRunResponse:
        """Blank the payloads of a settled run's decisions and effects."""
        trace = trace_of(context)
        done = await self._database.write(
            lambda tx: compaction.compact(tx, request.run_id, ignore_unowed=request.ignore_unowed, trace=trace)
        )
        return pb.CompactRunResponse(**msgspec.structs.asdict(done))

    # ── decisions ────────────────────────────────────────────────────────────────────────────────

    async def record_decision(self, request: pb.RecordDecisionRequest, context: Context) -> pb.DecisionRecord:
        """Record a decision once."""
        check_texts(
            self._max_bytes,
            request_json=request.request_json,
            response_json=request.response_json,
            rationale=request.rationale,
            model=request.model,
            policy_version=request.policy_version,
        )
        wanted = Decision(
            run_id=request.run_id,
            seq=0,
            decision_index=request.decision_index,
            model=request.model,
            request_json=request.request_json,
            response_json=request.response_json,
            rationale=request.rationale,
            policy_version=request.policy_version,
            ts_ms=0,
            digest=request.digest,
            position=request.position,
        )
        steps.check_step(wanted.digest, wanted.position)
        trace, owner, caller = trace_of(context), owner_of(context), caller_of(context)
        decision = await self._database.write(
            lambda tx: decisions.record(tx, wanted, owner=owner, caller=caller, trace=trace),
            size=request.ByteSize() + 512,
        )
        return to_message(pb.DecisionRecord, decision)

    async def get_decision(self, request: pb.GetDecisionRequest, context: Context) -> pb.GetDecisionResponse:
        """A decision, if it was recorded."""
        steps.check_step("", request.position)

        def look(reader: Reader) -> tuple[Decision | None, str]:
            decision = decisions.find(reader, request.run_id, request.decision_index)
            if decision is not None or not runs.is_visible(reader, request.run_id):
                return decision, ""
            return None, steps.describe_at(reader, request.run_id, request.position)

        found, displaced = await self._database.read(look)
        if found is None:
            return pb.GetDecisionResponse(found=False, displaced=displaced)
        return pb.GetDecisionResponse(found=True, decision=to_message(pb.DecisionRecord, found))

    # ── budgets ──────────────────────────────────────────────────────────────────────────────────

    async def set_budget(self, request: pb.SetBudgetRequest, context: Context) -> pb.BudgetState:
        """Set a run's caps."""
        budget = await self._database.write(
            lambda tx: budgets.set_caps(tx, request.run_id, usd_cap=request.usd_cap, token_cap=request.token_cap)
        )
        return to_message(pb.BudgetState, budget)

    async def admit_budget(self, request: pb.AdmitBudgetRequest, context: Context) -> pb.AdmitBudgetResponse:
        """Whether an estimate fits into the remaining budget."""
        budget = await self._database.read(lambda reader: budgets.get(reader, request.run_id))
        reason = budgets.refusal(budget, usd=request.usd_estimate, tokens=request.token_estimate)
        return pb.AdmitBudgetResponse(admitted=not reason, reason=reason, budget=to_message(pb.BudgetState, budget))

    async def charge_budget(self, request: pb.ChargeBudgetRequest, context: Context) -> pb.BudgetState:
        """Add to the spent budget of a run."""
        owner = owner_of(context)
        budget = await self._database.write(
            lambda tx: budgets.charge(tx, request.run_id, usd=request.usd, tokens=request.tokens, owner=owner)
        )
        return to_message(pb.BudgetState, budget)


def run_state(run: Run) -> pb.RunState:
    """A run on the wire."""
    state = _listed(run)
    state.result_json = run_results.result_json(run)
    return state


def _listed(run: Run) -> pb.RunState:
    """A run in a list: without its result."""
    error_type, error_message = run_results.error_of(run)
    named = {"error_type": error_type, "error_message": error_message}
    state = to_message(pb.RunState, run, scopes=run.scopes, labels=run.labels, **named)
    state.ClearField("result_json")
    return state
