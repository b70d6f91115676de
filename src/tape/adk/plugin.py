"""The plugin that makes runs of an agent durable: decisions are made once, tools act once.

An invocation of google-adk is a run. What the model says is recorded before it is acted upon, and a resumed
invocation gets it from the record. A tool's call is an effect: on record before the act, settled after it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import sys
import time
import uuid
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.run_config import StreamingMode
from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext

from tape.adk.drive import MARK, Drive
from tape.adk.identity import RunIdentity
from tape.adk.recording import (
    decision_json,
    is_continuation,
    joined,
    response_of,
    result_from_record,
    result_to_record,
)
from tape.budget import Budget, budget_from_run_config
from tape.client.channel import DEFAULT_URL
from tape.client.shared import shared_client
from tape.client.sync import TapeClient
from tape.durable import adopted_owner, ends_run
from tape.effect.call import ATTRIBUTE, EffectCall, RunHandle, enter, find_call
from tape.effect.declaration import EffectMeta, meta_of
from tape.effect.lease import DEFAULT_TTL_MS, Lease, new_owner
from tape.effect.patience import patiently
from tape.effect.perform import Underway
from tape.errors import (
    BudgetExceeded,
    EffectFailed,
    IllegalTransition,
    RunCancelled,
    RunEnded,
    TapeError,
)
from tape.proto import tape_pb2 as pb

# What a run remembers of its budget, for whoever resumes it without the run configuration.
_PRICE = "tape.usd_per_million_tokens"
_UNDERWAY = "_tape_underway"
_MEANING = "_tape_meaning"


class TapePlugin(BasePlugin):
    """Makes every invocation of a runner a durable run. Put it first among the plugins of an `App`.

    `budget` caps each run; a run configuration made by `tape.with_budget` wins. With `check_cancellation` a
    cancelled run also stops before the next step, at most every `cancel_check_interval_s`; effects are refused to it
    in any case. `identity` says for whom runs act, by default what the environment says. Without a `lease_owner`
    each drive of a run has one of its own, so that no two can drive the same run at once.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        client: TapeClient | None = None,
        budget: Budget | None = None,
        lease_owner: str | None = None,
        lease_ttl_ms: int | None = None,
        check_cancellation: bool = False,
        cancel_check_interval_s: float = 5.0,
        identity: RunIdentity | None = None,
        name: str = "tape",
    ) -> None:
        super().__init__(name=name)
        self._url = url
        self._client = client
        self._budget = budget
        self._lease_owner = lease_owner
        self._lease_ttl_ms = lease_ttl_ms or DEFAULT_TTL_MS
        self._check_cancellation = check_cancellation
        self._cancel_check_interval_s = cancel_check_interval_s
        self._identity = RunIdentity.from_env() if identity is None else identity
        self._drives: dict[int, Drive] = {}

    # ── a run ────────────────────────────────────────────────────────────────────────────────────

    async def before_run_callback(self, *, invocation_context: InvocationContext) -> None:
        """Begin the run of this invocation, or take it up again."""
        outer = find_call()
        if outer is not None and outer.idempotency_key:
            # An agent that another one calls as its tool: a part of that effect, in the same run.
            drive = Drive(outer.run, invocation_context.session, is_replaying=True, within=outer.idempotency_key)
        else:
            drive = await asyncio.to_thread(self._begin, invocation_context)
        self._drives[id(drive.session)] = drive
        # A cancelled task calls back to nobody: its run must not be kept from those who would carry it on.
        weakref.finalize(
            invocation_context, self._abandon, id(drive.session), drive.run.lease if not drive.within else None
        )

    def _begin(self, context: InvocationContext) -> Drive:
        owner = adopted_owner.get() or self._lease_owner or new_owner()
        client = (self._client or shared_client(self._url)).speaking_as(owner)
        budget = budget_from_run_config(context.run_config) or self._budget
        identity = self._identity.fields()
        if budget is not None and budget.usd_per_million_tokens:
            identity["labels"] = {**identity["labels"], _PRICE: str(budget.usd_per_million_tokens)}
        ids = (context.app_name, context.user_id, context.session.id, context.invocation_id)
        begun = patiently(
            client.begin_run,
            **dict(zip(("app_name", "user_id", "session_id", "invocation_id"), ids, strict=True)),
            **identity,
            lease_owner=owner,
            lease_ttl_ms=self._lease_ttl_ms,
        )
        if begun.status in (pb.RUN_STATUS_TERMINAL, pb.RUN_STATUS_STUCK):
            raise RunEnded(
                f"The run {begun.run_id!r} is {pb.RunStatus.Name(begun.status)[11:]}: nothing is left to do."
            )
        if budget is not None:
            patiently(client.set_budget, run_id=begun.run_id, usd_cap=budget.usd_cap, token_cap=budget.token_cap)
        elif begun.resumed:
            price = client.get_run(begun.run_id).labels.get(_PRICE)
            budget = Budget(usd_per_million_tokens=float(price)) if price else None
        run = RunHandle(client, begun.run_id, owner, *ids)
        run.lease = Lease(client, begun.run_id, owner, self._lease_ttl_ms)
        run.lease.keep()
        drive = Drive(run, context.session, is_replaying=begun.resumed, budget=budget)
        drive.learn(event for event in context.session.events if event.invocation_id == context.invocation_id)
        return drive

    def _abandon(self, key: int, lease: Lease | None) -> None:
        self._drives.pop(key, None)
        if lease is not None:
            lease.give_up()

    async def after_run_callback(self, *, invocation_context: InvocationContext) -> None:
        """End the run; one that waits for the answer to a long-running call waits for it on record."""
        drive = self._drives.pop(id(invocation_context.session), None)
        if drive is None or drive.within:
            return
        is_closed_early = isinstance(sys.exception(), (GeneratorExit, asyncio.CancelledError))
        await asyncio.to_thread(self._end, drive, invocation_context, is_closed_early)

    def _end(self, drive: Drive, context: InvocationContext, is_closed_early: bool) -> None:
        self._let_go(drive)
        run = drive.run
        if context.is_aborted:
            self._end_as(run, pb.RUN_STATUS_CANCELLED, {"reason": "aborted"})
        elif is_closed_early:
            return  # whoever listened has left, and the run is not over: it is there to be recovered
        elif waiting := _unanswered(context):
            call = waiting[0]
            patiently(
                run.client.await_signal,
                run_id=run.run_id,
                gate_name=f"adk-call:{call}",
                payload_json=json.dumps({"calls": waiting}),
            )
        else:
            self._end_as(run, pb.RUN_STATUS_TERMINAL)

    def _end_as(self, run: RunHandle, status: int, detail: dict[str, Any] | None = None) -> None:
        detail_json = json.dumps(detail) if detail else ""
        try:
            patiently(run.client.end_run, run_id=run.run_id, status=status, detail_json=detail_json)
        except IllegalTransition:
            _refuse_cancelled(run)
            raise

    def _let_go(self, drive: Drive) -> None:
        if drive.run.lease is not None:
            drive.run.lease.let_go()

    async def on_agent_error_callback(
        self, *, agent: BaseAgent, callback_context: CallbackContext, error: Exception
    ) -> None:
        """Take note: the event that google-adk makes of an exception is not to be kept."""
        if drive := self._drive(callback_context):
            drive.error = error

    async def on_run_error_callback(self, *, invocation_context: InvocationContext, error: Exception) -> None:
        """Fail the run, unless it can be carried on: after a gate, when an outcome is known, when a server is back."""
        drive = self._drives.pop(id(invocation_context.session), None)
        if drive is None or drive.within:
            return
        await asyncio.to_thread(self._let_go, drive)
        meant = meaning_of(error)
        if ends_run(meant):
            detail = {"error": type(meant).__name__, "message": str(meant)}
            await asyncio.to_thread(self._end_as, drive.run, pb.RUN_STATUS_FAILED, detail)

    async def on_event_callback(self, *, invocation_context: InvocationContext, event: Event) -> None:
        """Write on each event which decision it shows, and keep those from the session that would mislead a resume."""
        drive = self._drives.get(id(invocation_context.session))
        if drive is None or event.partial:
            return
        is_exception = drive.error is not None and event.error_code and not event.content
        if is_exception or drive.is_cut_short(event):
            event.partial = True  # it is shown, and not kept
        else:
            drive.mark(event)

    # ── agents ───────────────────────────────────────────────────────────────────────────────────

    async def before_agent_callback(self, *, agent: BaseAgent, callback_context: CallbackContext) -> None:
        """Let an agent that had given its last answer when its process died not be asked again."""
        drive = self._drive(callback_context)
        if drive is None or not drive.is_replaying or not isinstance(agent, LlmAgent):
            return
        context = callback_context._invocation_context
        if _has_answered(agent, context, drive.session.events[: drive.known_events]):
            context.end_invocation = True  # of this agent's own copy of the context
            context.set_agent_state(agent.name, end_of_agent=True)

    # ── the model ────────────────────────────────────────────────────────────────────────────────

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        """Answer from the record if this decision was made before; else see that the run may go on."""
        drive = self._drive(callback_context)
        if drive is None:
            return None
        await self._stop_if_cancelled(drive)
        branch = callback_context._invocation_context.branch
        if drive.may_be_recorded(branch) and (known := await asyncio.to_thread(self._recall, drive, branch)):
            return await _after_model(callback_context, known)
        await asyncio.to_thread(self._admit, drive)
        drive.ask(branch)
        return None

    def _recall(self, drive: Drive, branch: str | None) -> LlmResponse | None:
        """The response that is on record for the next decision of a branch, with all that goes on with it."""
        response = None
        while True:
            index = drive.next_index(branch)
            found = patiently(drive.run.client.get_decision, run_id=drive.run.run_id, decision_index=index)
            if not found.found:
                return response
            text = found.decision.response_json
            if response is not None and not is_continuation(text):
                return response
            further = response_of(text)
            response = further if response is None else joined(response, further)
            response.custom_metadata = {**(response.custom_metadata or {}), MARK: index}
            drive.decided(branch)

    def _admit(self, drive: Drive) -> None:
        usd = drive.budget.usd_of(1) if drive.budget else 0.0
        answer = patiently(drive.run.client.admit_budget, run_id=drive.run.run_id, usd_estimate=usd, token_estimate=1)
        if not answer.admitted:
            raise BudgetExceeded(f"The budget of run {drive.run.run_id!r} does not allow it: {answer.reason}.")

    async def after_model_callback(
        self, *, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> LlmResponse | None:
        """Record what the model decided, before anything is done about it."""
        drive = self._drive(callback_context)
        is_answer = not llm_response.partial and llm_response.content is not None
        if drive is None or not is_answer or MARK in (llm_response.custom_metadata or {}):
            return None
        for call in _calls(llm_response):
            call.id = call.id or f"adk-{uuid.uuid4()}"  # the prefix tells google-adk that the model did not give it
        return await asyncio.to_thread(self._record, drive, callback_context, llm_response)

    def _record(self, drive: Drive, context: CallbackContext, response: LlmResponse) -> LlmResponse | None:
        run, branch = drive.run, context._invocation_context.branch
        index = drive.next_index(branch)
        tokens = response.usage_metadata.total_token_count if response.usage_metadata else 0
        if tokens:
            # It is spent, also if this process dies before the decision is on record and the model is asked again.
            usd = drive.budget.usd_of(tokens) if drive.budget else 0.0
            patiently(run.client.charge_budget, run_id=run.run_id, usd=usd, tokens=tokens)
        mine = decision_json(response, continues=not drive.is_asked(branch))
        recorded = patiently(
            run.client.record_decision,
            run_id=run.run_id,
            decision_index=index,
            model=response.model_version or _model_of(context),
            request_json=json.dumps({"agent": context.agent_name, "branch": branch or ""}),
            response_json=mine,
            policy_version=self._identity.labels.get("policy_version", ""),
        )
        drive.decided(branch)
        if recorded.response_json == mine:
            response.custom_metadata = {**(response.custom_metadata or {}), MARK: index}
            return None
        earlier = response_of(recorded.response_json)  # somebody was faster: what is on record counts
        earlier.custom_metadata = {**(earlier.custom_metadata or {}), MARK: index}
        return earlier

    # ── tools ────────────────────────────────────────────────────────────────────────────────────

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        """Put the call on record as an effect, or answer with what came of it before."""
        drive = self._drive(tool_context)
        if drive is None or type(tool) is BaseTool:  # the latter stands for a tool that the model made up
            return None
        await self._stop_if_cancelled(drive)
        declared = meta_of(tool)
        meta = dataclasses.replace(declared, result_type=Any) if declared else EffectMeta(tool.name)
        place = drive.place_of(tool_context.function_call_id)
        root = EffectCall(drive.run, decision_index=place.decision_index if place else -1)
        if place is None and meta.key_from is None:
            # Nobody recorded the decision (a callback answered for the model); the call's id is all there is.
            key = f"{drive.run.run_id}/no-decision/{meta.name}/{tool_context.function_call_id}"
            meta = dataclasses.replace(meta, key_from=lambda: key)
        if meta.dispatch == "outbox":
            # Its function prepares the request and begins the effect itself, from here.
            root.counts[root.decision_index, meta.name] = place.call_index if place else 0
            _enter(tool_context, root)
            return None
        index = place.call_index if place else 0
        underway = await asyncio.to_thread(Underway.begin, meta, root, tool_args, call_index=index)
        _enter(tool_context, underway.call)
        if underway.is_to_be_done:
            setattr(tool_context, _UNDERWAY, underway)
            return None
        try:
            recorded = underway.outcome()
        except EffectFailed as failure:
            return await self._answer_failure(drive, failure, tool, tool_args, tool_context)
        if recorded is None and (tool.is_long_running or getattr(tool, "_defers_response", False)):
            return {}  # its answer comes later, by another way
        return result_from_record(recorded, tool_context)

    async def _answer_failure(
        self, drive: Drive, failure: EffectFailed, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any]:
        """Let those who answered for a failed tool answer again, or raise as the tool did."""
        context = tool_context._invocation_context
        given = {"tool": tool, "tool_context": tool_context, "error": failure}
        answer = await context.plugin_manager.run_on_tool_error_callback(tool_args=tool_args, **given)
        if answer is None:
            answer = await _first_answer(context.agent.canonical_on_tool_error_callbacks, args=tool_args, **given)
        if answer is None:
            raise failure
        return dict(answer)

    async def after_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, result: Any
    ) -> dict[str, Any] | None:
        """Settle the effect with the tool's result and what it did to the state."""
        underway: Underway | None = getattr(tool_context, _UNDERWAY, None)
        actions = tool_context.actions
        if underway is None or actions.requested_tool_confirmations or actions.requested_auth_configs:
            return None  # it was answered from the record, or asks for leave and has not acted
        setattr(tool_context, _UNDERWAY, None)
        mine = None if result is None else result_to_record(result, actions)
        recorded = await asyncio.to_thread(underway.confirm, mine)
        if recorded == mine:
            return None
        return result_from_record(recorded, tool_context)  # somebody was faster: what is on record counts

    async def on_tool_error_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, error: BaseException
    ) -> None:
        """Settle the effect as failed, or as unknown; a call that was interrupted is left to be done again."""
        drive = self._drive(tool_context)
        if drive is None or not isinstance(error, Exception):
            return
        drive.broke(tool_context.function_call_id)
        underway: Underway | None = getattr(tool_context, _UNDERWAY, None)
        if underway is not None:
            setattr(tool_context, _UNDERWAY, None)
            setattr(error, _MEANING, await asyncio.to_thread(underway.fail, error))

    # ── small parts ──────────────────────────────────────────────────────────────────────────────

    def _drive(self, context: CallbackContext) -> Drive | None:
        return self._drives.get(id(context._invocation_context.session))

    async def _stop_if_cancelled(self, drive: Drive) -> None:
        now = time.monotonic()
        if self._check_cancellation and now - drive.cancellation_checked_at >= self._cancel_check_interval_s:
            drive.cancellation_checked_at = now
            await asyncio.to_thread(_refuse_cancelled, drive.run)


def meaning_of(error: Exception) -> Exception:
    """What an exception that came out of a runner stands for: google-adk wraps those of plugins."""
    cause = error.__cause__
    if isinstance(error, RuntimeError) and isinstance(cause, TapeError):
        return cause
    meant = getattr(error, _MEANING, error)
    return meant if isinstance(meant, Exception) else error


def _refuse_cancelled(run: RunHandle) -> None:
    if patiently(run.client.get_run, run_id=run.run_id).status == pb.RUN_STATUS_CANCELLED:
        raise RunCancelled(f"The run {run.run_id!r} was cancelled.")


def _enter(tool_context: ToolContext, call: EffectCall) -> None:
    setattr(tool_context, ATTRIBUTE, call)
    enter(call)  # also for tools that do not ask for their context


def _calls(response: LlmResponse) -> list[Any]:
    parts = (response.content.parts if response.content else None) or []
    return [part.function_call for part in parts if part.function_call]


def _model_of(context: CallbackContext) -> str:
    model = getattr(context._invocation_context.agent, "model", "")
    return model if isinstance(model, str) else str(getattr(model, "model", ""))


def _has_answered(agent: LlmAgent, context: InvocationContext, events: Sequence[Event]) -> bool:
    """Whether an agent's last event in its branch is its final answer: nothing came after it but its own end."""
    for event in reversed(events):
        if event.invocation_id != context.invocation_id or event.branch != context.branch:
            continue
        if event.author == agent.name and event.actions.end_of_agent:
            continue
        is_streaming = context.run_config is not None and context.run_config.streaming_mode == StreamingMode.SSE
        return bool(
            event.author == agent.name
            and MARK in (event.custom_metadata or {})
            and event.is_final_response()
            and not event.long_running_tool_ids
            # A streamed answer may come in several parts; the last one says why it ends.
            and (event.finish_reason is not None or not is_streaming)
        )
    return False


def _unanswered(context: InvocationContext) -> list[str]:
    """Long-running calls of an invocation that the user has not answered yet, the oldest first."""
    mine = [event for event in context.session.events if event.invocation_id == context.invocation_id]
    answered = {answer.id for event in mine if event.author == "user" for answer in event.get_function_responses()}
    asked = [call for event in mine for call in sorted(event.long_running_tool_ids or ())]
    return [call for call in asked if call not in answered]


async def _after_model(callback_context: CallbackContext, response: LlmResponse) -> LlmResponse:
    """A recorded response as the callbacks after the model make of it: they were there the first time, too."""
    context = callback_context._invocation_context
    altered = await context.plugin_manager.run_after_model_callback(
        callback_context=callback_context, llm_response=response
    )
    if not altered:
        callbacks = context.agent.canonical_after_model_callbacks
        altered = await _first_answer(callbacks, callback_context=callback_context, llm_response=response)
    return altered or response


async def _first_answer(callbacks: Sequence[Callable[..., Any]], **given: Any) -> Any:
    """What the first of some callbacks says that says anything."""
    for callback in callbacks:
        answer = callback(**given)
        if inspect.isawaitable(answer):
            answer = await answer
        if answer is not None:
            return answer
    return None
