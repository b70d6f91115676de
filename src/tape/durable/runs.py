"""Durable runs of plain Python code: `with tape.durable_run("treasury", …) as run`.

Within the block every `@tape.effect` is recorded, every `run.decide(…)` is made once, and the lease is renewed. If the
process dies, any process can execute the block again: it gets the recorded decisions and results, and performs only
effects that were not performed.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import msgspec

from tape.base.durations import Duration
from tape.base.ids import new_id
from tape.base.owner import new_owner
from tape.base.retry import UNLIMITED, RetryPolicy, retry
from tape.client.channel import DEFAULT_URL
from tape.client.sync import TapeClient
from tape.durable.budgets import Budget
from tape.durable.callback_arguments import finish
from tape.durable.change_detection import StepCheck, StepCursor, check_of, check_on_change, locate, next_position
from tape.durable.child_runs import await_child, begin_child
from tape.durable.digest import DigestOption, check_option, digest_of
from tape.durable.effect_call import EffectCall, RunHandle, within
from tape.durable.interruptions import ends_run, find_interruption
from tape.durable.lease import DEFAULT_TTL_MS, RunLease
from tape.durable.recorded_client import current_recording
from tape.durable.results import decode, encode
from tape.durable.server_retry import call_with_retry
from tape.durable.sleep import sleep, sleep_async
from tape.durable.versions import version
from tape.errors import (
    BudgetExceeded,
    IllegalTransition,
    LeaseHeld,
    PayloadTooLarge,
    RunChanged,
    RunEnded,
    RunResultRejected,
)
from tape.model.payload import to_json
from tape.proto import tape_pb2 as pb

_LEASE_POLL = RetryPolicy(
    max_attempts=UNLIMITED, initial_interval_s=0.2, max_interval_s=0.2, jitter=0.1, retry_on=(LeaseHeld,)
)

# Recovery leases a run before it calls the recovery function: the run it resumes adopts that lease owner.
adopted_owner: contextvars.ContextVar[str] = contextvars.ContextVar("tape_adopted_owner", default="")


class _DecisionStep(NamedTuple):
    """A decision that is about to be made: its index, its position among the steps, and what it is asked with."""

    decision_index: int
    position: str
    digest: str
    request_json: str
    on_change: str


class DurableRun:
    """A run that this process executes; made by `durable_run`, used in a `with` or `async with` block.

    The run ends with the block: TERMINAL with its `result`, or FAILED if the block raised. It stays open, to be resumed
    later, when it parked at a gate, when an outcome is unknown, when the server is unavailable, or when the process is
    stopped.
    """

    def __init__(
        self,
        identity: dict[str, Any],
        *,
        url: str,
        client: TapeClient | None,
        budget: Budget | None,
        lease_ttl_ms: int,
        lease_wait_s: float,
        on_change: str = "stop",
    ) -> None:
        self._on_change = check_on_change(on_change, "durable_run") or "stop"
        self._identity = identity
        self._lease_ttl_ms = lease_ttl_ms
        self._lease_wait_s = lease_wait_s
        self._budget = budget
        self._owns_client = client is None
        self._url = url
        self._client = client
        self._within: Any = None
        self._result_json = ""
        self.resumed = False
        # It had finished before: the block replays what is on record, and anything new is refused with RunOver.
        self.is_finished = False

    # ── the block ────────────────────────────────────────────────────────────────────────────────

    def __enter__(self) -> DurableRun:
        self._begin()
        self._tape_call.run.cursor = StepCursor(is_resumed=self.resumed)
        self._within = within(self._tape_call)
        self._within.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._within.__exit__(None, None, None)
        self._end(error)

    async def __aenter__(self) -> DurableRun:
        await asyncio.to_thread(self._begin)
        self._tape_call.run.cursor = StepCursor(is_resumed=self.resumed)
        self._within = within(self._tape_call)
        self._within.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._within.__exit__(None, None, None)
        await asyncio.to_thread(self._end, error)

    def _begin(self) -> None:
        owner = adopted_owner.get() or self._identity["lease_owner"] or new_owner()
        recorded: Any = current_recording.get()
        client: TapeClient = recorded or self._client or TapeClient(self._url, lease_owner=owner)
        try:
            begun = self._take(client, owner)
            ids = ("app_name", "user_id", "session_id", "invocation_id")
            handle = RunHandle(client, begun.run_id, owner, *(self._identity[name] for name in ids))
            handle.budget = self._budget
            handle.on_change = self._on_change
            self._tape_call = EffectCall(handle)
            self.resumed = begun.resumed
            if begun.status == pb.RUN_STATUS_STUCK:
                raise RunEnded(f"The run {begun.run_id!r} is STUCK: an operator has to resume it (tape runs resume).")
            self.is_finished = handle.is_finished = begun.status == pb.RUN_STATUS_TERMINAL
            if self.is_finished:
                self._result_json = call_with_retry(client.get_run, run_id=begun.run_id).result_json
                return
            if self._budget is not None:
                caps = {"usd_cap": self._budget.usd_cap, "token_cap": self._budget.token_cap}
                call_with_retry(client.set_budget, run_id=begun.run_id, **caps)
        except BaseException:
            if self._owns_client:
                client.close()
            raise
        if handle.is_replayed:
            return
        handle.lease = RunLease(client, begun.run_id, owner, self._lease_ttl_ms, on_lost=handle.lease_is_lost)
        handle.lease.start()

    def _take(self, client: TapeClient, owner: str) -> pb.BeginRunResponse:
        """Begin the run, or take its lease as soon as that of another process has expired."""
        wanted = {**self._identity, "lease_owner": owner, "lease_ttl_ms": self._lease_ttl_ms}

        def begin() -> pb.BeginRunResponse:
            begun: pb.BeginRunResponse = call_with_retry(client.begin_run, **wanted)
            return begun

        return retry(begin, _LEASE_POLL, deadline_s=self._lease_wait_s)

    def _end(self, error: BaseException | None) -> None:
        """End the run, or leave it open if it was interrupted.

        An interruption that the block has swallowed, or that is in a group of exceptions, is raised here.
        """
        handle = self._tape_call.run
        try:
            if handle.lease is not None:
                handle.lease.stop()
            if error is None or isinstance(error, Exception | BaseExceptionGroup):
                interruption = find_interruption(error) or handle.interruption
                if interruption is not None:
                    raise interruption from error
            if self.is_finished:
                return
            if error is None:
                self._end_as(pb.RUN_STATUS_TERMINAL, result_json=self._result_json)
            elif ends_run(error):
                detail = json.dumps({"error": type(error).__name__, "message": str(error)})
                self._end_as(pb.RUN_STATUS_FAILED, error=error, detail_json=detail)
        finally:
            if self._owns_client:
                handle.client.close()

    def _end_as(self, status: int, error: BaseException | None = None, **texts: str) -> None:
        handle = self._tape_call.run
        try:
            handle.call(handle.client.end_run, status=status, **{name: text for name, text in texts.items() if text})
        except PayloadTooLarge as refusal:
            if error is not None:
                raise
            raise RunResultRejected(
                f"The result of the run {self.run_id!r} is too large: {refusal} The run stays open, and ends when it is"
                " executed again with a smaller result."
            ) from refusal
        except IllegalTransition as refusal:
            handle.lease_is_lost(refusal)
            if handle.interruption is None:
                raise
            raise handle.interruption from error or refusal

    # ── operations of a run ────────────────────────────────────────────────────────────────────────

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._tape_call.run_id

    @property
    def client(self) -> TapeClient:
        """The client that holds the lease of the run."""
        client: TapeClient = self._tape_call.run.client
        return client

    @property
    def result(self) -> Any:
        """What the run gives. Set it in the block; it is recorded with the end of the run, at most a payload's size.

        A finished run has the recorded result, whatever is set. Raises RunResultRejected for a value that is not JSON.
        """
        return decode(self._result_json)

    @result.setter
    def result(self, value: Any) -> None:
        encoded = encode(value, self.run_id)
        if not self.is_finished:
            self._result_json = encoded

    def result_as(self, kind: Any) -> Any:
        """The result, read as a type, such as a dataclass."""
        return decode(self._result_json, kind)

    def child(
        self, app_name: str = "", *, invocation_id: str = "", on_parent_cancel: str = "cancel", **options: Any
    ) -> DurableRun:
        """A run below this one, for a `with` block: recorded with its parent, and cancelled with it.

        App, user and session are by default those of the parent. Without an `invocation_id` the number of the call
        identifies the child, so that a resumed parent finds it again. With `on_parent_cancel="leave"` the child goes
        on when the parent is cancelled. `options` are those of `durable_run`.
        """
        return begin_child(
            self._tape_call,
            app_name,
            invocation_id=invocation_id,
            on_parent_cancel=on_parent_cancel,
            adopted=adopted_owner.get(),
            options=options,
        )

    def result_of(self, child: DurableRun | str) -> Any:
        """The result of a child, or of another run by its id, recorded in this run.

        Raises RunFailed if it ended without a result. While it has not ended, this run parks (RunParked) and becomes
        runnable with the end of its child.
        """
        return await_child(self._tape_call, child if isinstance(child, str) else child.run_id)

    def set_parent(self, run_id: str, policy: int) -> None:
        """Begin the run as a child; only before the block."""
        self._identity |= {"parent_run_id": run_id, "on_parent_cancel": policy}

    def decide(
        self,
        make: Callable[[], Any],
        *,
        model: str = "",
        request: Any = None,
        rationale: str = "",
        policy_version: str = "",
        on_change: str = "",
        digest: DigestOption = None,
    ) -> Any:
        """The next decision: calls `make()` once and records the result; a resumed run gets the recorded one.

        A resumed run compares `request` with the record: `on_change` is `stop`, `warn` or `accept` (default: that of
        the run), and `digest` names the fields that are not compared, or is a function of the request.
        """
        step = self._next_step(request, on_change, digest)
        if (known := self._recorded_decision(step)).found:
            return _decided(known.decision)
        return self._record_decision(finish(make()), model, rationale, policy_version, step)

    async def decide_async(
        self,
        make: Callable[[], Awaitable[Any]],
        *,
        model: str = "",
        request: Any = None,
        rationale: str = "",
        policy_version: str = "",
        on_change: str = "",
        digest: DigestOption = None,
    ) -> Any:
        """`decide` for a coroutine function, such as a call of a model."""
        step = self._next_step(request, on_change, digest)
        try:
            known = await asyncio.to_thread(self._recorded_decision, step)
        except RunChanged as change:
            raise locate(change) from None
        if known.found:
            return _decided(known.decision)
        made = await make()
        return await asyncio.to_thread(self._record_decision, made, model, rationale, policy_version, step)

    def version(self, name: str, newest: int, *, lowest: int = 1) -> int:
        """Which version of a deliberate change of the code this run has: a new run records the newest.

        A run keeps the version that it recorded. A run that passed this point before the call existed gets the lowest.
        Raises RunChanged if that is not between `lowest` and `newest`: the code no longer knows it, or not yet.
        """
        return version(self._tape_call, name, newest, lowest)

    def _next_step(self, request: Any, on_change: str, digest: DigestOption) -> _DecisionStep:
        call = self._tape_call
        call.decision_index += 1
        check_on_change(on_change, "decide")
        option = check_option(digest, "decide")
        return _DecisionStep(
            call.decision_index,
            next_position(call),
            "" if request is None else digest_of(request, option),
            "" if request is None else to_json(request),
            on_change,
        )

    def _recorded_decision(self, step: _DecisionStep) -> pb.GetDecisionResponse:
        call = self._tape_call
        if not self.resumed:  # this process has begun the run, so that nothing can be on record
            call.run.check()
            return pb.GetDecisionResponse()
        check = StepCheck(
            call,
            f"the decision {step.decision_index}",
            on_change=step.on_change,
            position=step.position,
            digest=step.digest,
            asked=step.request_json,
        )
        found: pb.GetDecisionResponse = call.run.call(
            self.client.get_decision,
            decision_index=step.decision_index,
            position=step.position if check_of(call, step.on_change, step.position) else "",
        )
        if found.found:
            record = found.decision
            check.compare(
                seq=record.seq,
                digest=record.digest,
                position=record.position,
                recorded_json=lambda: record.request_json,
            )
        else:
            call.run.refuse_new(f"the decision {step.decision_index}")
            check.is_new(found.displaced)
        return found

    def _record_decision(self, made: Any, model: str, rationale: str, policy_version: str, step: _DecisionStep) -> Any:
        recorded = self._tape_call.run.call(
            self.client.record_decision,
            decision_index=step.decision_index,
            model=model,
            request_json=step.request_json,
            response_json=to_json({"decision": made}),
            rationale=rationale,
            policy_version=policy_version,
            digest=step.digest,
            position=step.position,
        )
        return _decided(recorded)

    def sleep(self, duration: Duration) -> None:
        """Sleep for "3d", "90s", a number of seconds or a timedelta: RunParked until the time has come."""
        sleep(duration, tool_context=self._tape_call)

    async def sleep_async(self, duration: Duration) -> None:
        """`sleep` for coroutines."""
        await sleep_async(duration, tool_context=self._tape_call)

    def admit(self, *, usd: float = 0.0, tokens: int = 0) -> None:
        """Raise BudgetExceeded if that much more does not fit into the budget."""
        run = self._tape_call.run
        answer = run.call(self.client.admit_budget, usd_estimate=usd, token_estimate=tokens)
        if not answer.admitted:
            raise BudgetExceeded(f"The budget of run {self.run_id!r} does not allow it: {answer.reason}.")

    def charge(self, *, usd: float = 0.0, tokens: int = 0) -> None:
        """Add to what the run has spent; nothing if it is finished."""
        if self.is_finished:
            return
        self.client.charge_budget(run_id=self.run_id, usd=usd, tokens=tokens)


def _decided(record: pb.DecisionRecord) -> Any:
    return msgspec.json.decode(record.response_json)["decision"]


def durable_run(
    app_name: str,
    *,
    user_id: str = "",
    session_id: str = "",
    invocation_id: str = "",
    url: str = DEFAULT_URL,
    client: TapeClient | None = None,
    budget: Budget | None = None,
    lease_owner: str = "",
    lease_ttl_ms: int = DEFAULT_TTL_MS,
    lease_wait_s: float = 0.0,
    tenant_id: str = "",
    actor: str = "",
    subject: str = "",
    agent_id: str = "",
    scopes: Sequence[str] | None = None,
    labels: Mapping[str, str] | None = None,
    on_change: str = "stop",
) -> DurableRun:
    """Begin or resume a run in a `with` block; app, user, session and invocation identify it.

    Without an `invocation_id` it is a new run each time. A `client` of yours should have a `lease_owner`.
    A finished run has `run.is_finished` and `run.result`; its block replays what is on record, and anything new raises
    RunOver. Raises RunEnded if the run is STUCK, and LeaseHeld if another process has leased it. The lease of a process
    that died expires after its `lease_ttl_ms`; `lease_wait_s` waits for that.

    `on_change` says what happens when the code asks for something else than the run has recorded: `stop` raises
    RunChanged, `warn` logs it, `accept` uses the record.
    """
    identity = {
        "app_name": app_name,
        "user_id": user_id,
        "session_id": session_id,
        "invocation_id": invocation_id or new_id(),
        "lease_owner": lease_owner,
        "tenant_id": tenant_id,
        "actor": actor,
        "subject": subject,
        "agent_id": agent_id,
        "scopes": scopes,
        "labels": labels,
    }
    return DurableRun(
        identity,
        url=url,
        client=client,
        budget=budget,
        lease_ttl_ms=lease_ttl_ms,
        lease_wait_s=lease_wait_s,
        on_change=on_change,
    )


def continue_run(run: pb.RunState, *, url: str = DEFAULT_URL, client: TapeClient | None = None) -> DurableRun:
    """Resume an existing run in a `with` block: for the `redrive_fn` of recovery."""
    resumed = durable_run(
        run.app_name,
        user_id=run.user_id,
        session_id=run.session_id,
        invocation_id=run.invocation_id,
        tenant_id=run.tenant_id,
        url=url,
        client=client,
    )
    if run.parent_run_id:
        resumed.set_parent(run.parent_run_id, run.on_parent_cancel)  # it belongs to the tenant of its parent
    return resumed
