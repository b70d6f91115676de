"""Begins and ends the runs of invocations."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from google.adk.agents.invocation_context import InvocationContext

from tape.adk.drive import Drive
from tape.adk.identity import RunIdentity
from tape.adk.invocation import unanswered_calls, unwrapped
from tape.adk.order import CallsLast
from tape.base.owner import new_owner
from tape.client.shared import shared_client
from tape.client.sync import TapeClient
from tape.durable.budgets import KEY, Budget, budget_from_run_config
from tape.durable.effect_call import RunHandle
from tape.durable.interruptions import ends_run
from tape.durable.lease import RunLease
from tape.durable.runs import adopted_owner
from tape.durable.server_retry import call_with_retry
from tape.errors import IllegalTransition, RunCancelled, RunEnded
from tape.proto import tape_pb2 as pb


class Runs:
    """Begins and ends runs on a server. Its methods block: call them on a thread."""

    def __init__(
        self,
        url: str,
        client: TapeClient | None,
        *,
        budget: Budget | None,
        identity: RunIdentity,
        lease_owner: str | None,
        lease_ttl_ms: int,
    ) -> None:
        self._url = url
        self._client = client
        self._budget = budget
        self._identity = identity
        self._lease_owner = lease_owner
        self._lease_ttl_ms = lease_ttl_ms

    def begin(self, context: InvocationContext) -> Drive:
        """Begin or resume the run of an invocation, and renew its lease."""
        own = budget_from_run_config(context.run_config)
        run, is_resumed = self._take(context.app_name, context.user_id, context.session.id, context.invocation_id, own)
        if own is None and is_resumed:
            remembered = call_with_retry(run.client.get_run, run_id=run.run_id).labels.get(KEY)
            own = Budget(**json.loads(remembered)) if remembered else None
        budget = own or self._budget
        if budget is not None:
            call_with_retry(
                run.client.set_budget, run_id=run.run_id, usd_cap=budget.usd_cap, token_cap=budget.token_cap
            )
        run.lease = RunLease(run.client, run.run_id, run.lease_owner, self._lease_ttl_ms, on_lost=run.lease_is_lost)
        run.lease.start()
        if is_resumed:
            context.session.events = CallsLast(context.session.events)
        drive = Drive(run, context.session, is_replaying=is_resumed, budget=budget)
        drive.learn(event for event in context.session.events if event.invocation_id == context.invocation_id)
        return drive

    def end(self, drive: Drive, context: InvocationContext, *, is_closed_early: bool) -> None:
        """End the run of an invocation; one with an unanswered long-running call parks at a gate."""
        _let_go(drive)
        run = drive.run
        run.check()
        if context.is_aborted:
            _end_as(run, pb.RUN_STATUS_CANCELLED, {"reason": "aborted"})
        elif is_closed_early:
            return  # the consumer closed the stream early: the run stays open for recovery
        elif waiting := unanswered_calls(context):
            call_with_retry(
                run.client.await_signal,
                run_id=run.run_id,
                gate_name=f"adk-call:{waiting[0]}",
                payload_json=json.dumps({"calls": waiting}),
            )
        else:
            _end_as(run, pb.RUN_STATUS_TERMINAL)

    def end_failed(self, drive: Drive, error: Exception) -> None:
        """Fail the run, unless it can be resumed after this exception."""
        _let_go(drive)
        cause = unwrapped(error)
        if ends_run(cause) and drive.run.interruption is None:
            _end_as(drive.run, pb.RUN_STATUS_FAILED, {"error": type(cause).__name__, "message": str(cause)})

    def finish(self, *, app_name: str, user_id: str, session_id: str, invocation_id: str) -> None:
        """End the run of an invocation that has ended, for a process that died before it ended the run."""
        run, _ = self._take(app_name, user_id, session_id, invocation_id, None)
        _end_as(run, pb.RUN_STATUS_TERMINAL)

    def _take(
        self, app_name: str, user_id: str, session_id: str, invocation_id: str, budget: Budget | None
    ) -> tuple[RunHandle, bool]:
        """The run of an invocation, leased to this execution, and whether it was begun before."""
        owner = adopted_owner.get() or self._lease_owner or new_owner()
        client = (self._client or shared_client(self._url)).with_lease_owner(owner)
        identity = self._identity.fields()
        if budget is not None:  # a process that resumes the run does not have the run configuration
            identity["labels"] = {**identity["labels"], KEY: json.dumps(asdict(budget))}
        ids = {"app_name": app_name, "user_id": user_id, "session_id": session_id, "invocation_id": invocation_id}
        begun = call_with_retry(client.begin_run, **ids, **identity, lease_owner=owner, lease_ttl_ms=self._lease_ttl_ms)
        if begun.status in (pb.RUN_STATUS_TERMINAL, pb.RUN_STATUS_STUCK):
            raise RunEnded(
                f"The run {begun.run_id!r} is {pb.RunStatus.Name(begun.status)[11:]}: nothing is left to do."
            )
        handle = RunHandle(client, begun.run_id, owner, app_name, user_id, session_id, invocation_id)
        return handle, begun.resumed


def refuse_cancelled(run: RunHandle) -> None:
    """Raise RunCancelled if the run was cancelled."""
    state = call_with_retry(run.client.get_run, run_id=run.run_id)
    if pb.RUN_STATUS_CANCELLED in (state.status, state.former_status):
        raise run.interrupt(RunCancelled(f"The run {run.run_id!r} was cancelled."))


def _end_as(run: RunHandle, status: int, detail: dict[str, Any] | None = None) -> None:
    detail_json = json.dumps(detail) if detail else ""
    try:
        run.call(run.client.end_run, status=status, detail_json=detail_json)
    except IllegalTransition:
        refuse_cancelled(run)
        raise


def _let_go(drive: Drive) -> None:
    if drive.run.lease is not None:
        drive.run.lease.stop()
