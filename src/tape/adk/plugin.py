"""The plugin that makes runs of an agent durable: decisions are made once, tools act once.

An invocation of google-adk is a run. The model's response is recorded before it is used, and a resumed invocation
gets the recorded one. A tool call is an effect: recorded as pending before the call, settled after it.

Callbacks return None where possible: after another result google-adk skips the agent's own callbacks.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import time
import weakref
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext

from tape.adk.drive import MARK, Drive
from tape.adk.identity import RunIdentity
from tape.adk.invocation import REPLACEMENT, calls_of, first_answer, has_answered, model_of, put_question_back
from tape.adk.records import decision_json, is_continuation, joined, response_of, result_from_record, result_to_record
from tape.adk.runs import Runs, refuse_cancelled
from tape.base.coroutines import finish_in_thread
from tape.base.ids import new_id
from tape.client.channel import DEFAULT_URL
from tape.client.sync import TapeClient
from tape.durable.budgets import Budget
from tape.durable.declaration import EffectMeta, meta_of
from tape.durable.effect_call import ATTRIBUTE, EffectCall, enter, find_call
from tape.durable.effect_execution import BegunEffect
from tape.durable.lease import DEFAULT_TTL_MS
from tape.durable.server_retry import call_with_retry
from tape.errors import BudgetExceeded, EffectFailed

# The attribute of a tool context that has the effect to settle after the call.
_BEGUN_EFFECT = "_tape_begun_effect"


class TapePlugin(BasePlugin):
    """Makes every invocation of a runner a durable run. Put it first among the plugins of an `App`.

    `budget` caps each run; a run configuration made by `tape.with_budget` wins. With `check_cancellation` a
    cancelled run also stops before its next step, checked at most every `cancel_check_interval_s`; its effects are
    rejected in any case. `identity` is the identity of runs, by default that of the environment. Without a
    `lease_owner` each execution of a run has its own, so that no two execute the same run at once.
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
        self._identity = RunIdentity.from_env() if identity is None else identity
        self.runs = Runs(
            url,
            client,
            budget=budget,
            identity=self._identity,
            lease_owner=lease_owner,
            lease_ttl_ms=lease_ttl_ms or DEFAULT_TTL_MS,
        )
        self._check_cancellation = check_cancellation
        self._cancel_check_interval_s = cancel_check_interval_s
        # By the session object: an invocation has one of its own, and all copies of its context share it.
        self._drives: dict[int, Drive] = {}

    def _drive(self, context: CallbackContext) -> Drive | None:
        return self._drives.get(id(context._invocation_context.session))

    # ── runs ─────────────────────────────────────────────────────────────────────────────────────

    async def before_run_callback(self, *, invocation_context: InvocationContext) -> None:
        """Begin the run of this invocation, or resume it."""
        if invocation_context.live_request_queue is not None:
            return  # a live connection cannot be resumed
        outer = find_call()
        if outer is not None and outer.idempotency_key:
            # An agent called as a tool of another agent: part of that effect, in the same run.
            budget = next((each.budget for each in self._drives.values() if each.run is outer.run), None)
            key = outer.idempotency_key
            drive = Drive(outer.run, invocation_context.session, is_replaying=True, budget=budget, within=key)
        else:
            drive = await asyncio.to_thread(self.runs.begin, invocation_context)
        self._drives[id(drive.session)] = drive
        # A cancelled task makes no callback: stop renewing its lease, so that another process can resume the run.
        weakref.finalize(invocation_context, self._forget, id(drive.session))

    def begun_drives(self) -> frozenset[int]:
        """The invocations that are being executed."""
        return frozenset(self._drives)

    def leave(self, user_id: str, session_id: str, *, except_for: frozenset[int]) -> None:
        """Release the runs of a session that were interrupted: google-adk makes no callback for an interruption."""
        for key, drive in list(self._drives.items()):
            if key not in except_for and (drive.run.user_id, drive.run.session_id) == (user_id, session_id):
                self._forget(key)

    def _forget(self, key: int) -> None:
        drive = self._drives.pop(key, None)
        if drive is not None and not drive.within and drive.run.lease is not None:
            drive.run.lease.stop(wait=False)

    async def after_run_callback(self, *, invocation_context: InvocationContext) -> None:
        """End the run; one with an unanswered long-running call parks at a gate."""
        drive = self._drives.pop(id(invocation_context.session), None)
        if drive is not None and not drive.within:
            is_closed_early = isinstance(sys.exception(), (GeneratorExit, asyncio.CancelledError))
            await asyncio.to_thread(self.runs.end, drive, invocation_context, is_closed_early=is_closed_early)

    async def on_run_error_callback(self, *, invocation_context: InvocationContext, error: Exception) -> None:
        """Fail the run, unless it can be resumed later: parked at a gate, outcome unknown, server unavailable."""
        drive = self._drives.pop(id(invocation_context.session), None)
        if drive is not None and not drive.within:
            await asyncio.to_thread(self.runs.end_failed, drive, error)

    async def on_agent_error_callback(
        self, *, agent: BaseAgent, callback_context: CallbackContext, error: Exception
    ) -> None:
        """Note the exception: google-adk's event of it must not be stored."""
        if drive := self._drive(callback_context):
            drive.has_raised = True

    async def on_event_callback(self, *, invocation_context: InvocationContext, event: Event) -> None:
        """Mark each event with its decision, and do not store events that would mislead a resumed agent."""
        drive = self._drives.get(id(invocation_context.session))
        if drive is None or event.partial:
            return
        is_exception = drive.has_raised and event.error_code and not event.content
        if is_exception or drive.is_cut_short(event):
            event.partial = True  # shown, but not stored
            return
        config = invocation_context.run_config
        drive.mark(event, is_streamed=bool(config and config.streaming_mode.value))

    async def before_agent_callback(self, *, agent: BaseAgent, callback_context: CallbackContext) -> None:
        """Show a resumed agent what it has done, and do not run one again that has given its final answer."""
        drive = self._drive(callback_context)
        if drive is None or not drive.is_replaying or not isinstance(agent, LlmAgent):
            return
        context = callback_context._invocation_context
        put_question_back(context)
        # Only the first time: in a loop it is asked again.
        is_first = drive.is_first_entry(agent.name, context.branch)
        if is_first and has_answered(agent, context, drive.earlier_events):
            context.end_invocation = True  # of this agent's own copy of the context
            context.set_agent_state(agent.name, end_of_agent=True)

    async def _stop_if_cancelled(self, drive: Drive) -> None:
        now = time.monotonic()
        if self._check_cancellation and now - drive.looked_at >= self._cancel_check_interval_s:
            drive.looked_at = now
            await asyncio.to_thread(refuse_cancelled, drive.run)

    # ── decisions ────────────────────────────────────────────────────────────────────────────────

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        """Return the recorded decision if there is one; else check the budget."""
        drive = self._drive(callback_context)
        if drive is None:
            return None
        await self._stop_if_cancelled(drive)
        context = callback_context._invocation_context
        known = await asyncio.to_thread(_recall, drive, context.branch)
        if known is None:
            await asyncio.to_thread(_admit, drive)
            drive.ask(context.branch)
            return None
        # Run the after-model callbacks, as in the first execution.
        given: dict[str, Any] = {"callback_context": callback_context, "llm_response": known}
        altered = await context.plugin_manager.run_after_model_callback(**given)
        return altered or await first_answer(context, "after_model", **given) or known

    async def after_model_callback(
        self, *, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> LlmResponse | None:
        """Record the model's decision before it is used."""
        drive = self._drive(callback_context)
        is_answer = not llm_response.partial and llm_response.content is not None
        if drive is None or not is_answer or MARK in (llm_response.custom_metadata or {}):
            return None
        for call in calls_of(llm_response):
            call.id = call.id or f"adk-{new_id()}"  # the prefix marks an id that the model did not set
        return await asyncio.to_thread(self._record, drive, callback_context, llm_response)

    def _record(self, drive: Drive, context: CallbackContext, response: LlmResponse) -> LlmResponse | None:
        run, branch = drive.run, context._invocation_context.branch
        index = drive.next_index(branch)
        tokens = (response.usage_metadata.total_token_count if response.usage_metadata else 0) or 0
        if tokens:
            # Spent also if this process dies before the decision is recorded and the model is asked again.
            usd = drive.budget.usd_of(tokens) if drive.budget else 0.0
            call_with_retry(run.client.charge_budget, run_id=run.run_id, usd=usd, tokens=tokens)
        mine = decision_json(response, continues=not drive.is_asked(branch))
        recorded = run.call(
            run.client.record_decision,
            decision_index=index,
            model=response.model_version or model_of(context),
            request_json=json.dumps({"agent": context.agent_name, "branch": branch or ""}),
            response_json=mine,
            policy_version=self._identity.labels.get("policy_version", ""),
        )
        drive.decided(branch)
        if recorded.response_json == mine:
            response.custom_metadata = {**(response.custom_metadata or {}), MARK: index}
            return None
        return _marked(response_of(recorded.response_json), index)  # another process was faster: use the recorded one

    # ── effects ──────────────────────────────────────────────────────────────────────────────────

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        """Record the call as an effect, or return its recorded result."""
        drive = self._drive(tool_context)
        if drive is None or type(tool) is BaseTool:  # a plain BaseTool stands for an unknown tool that the model named
            return None
        await self._stop_if_cancelled(drive)
        declared = meta_of(tool)
        meta = dataclasses.replace(declared, result_type=Any) if declared else EffectMeta(tool.name)
        call_id = tool_context.function_call_id
        position = drive.position_of(call_id)
        root = EffectCall(drive.run, decision_index=position.decision_index)
        if position.decision_index < 0 and meta.key_from is None:
            # The decision is not recorded (a callback replaced the model): only the call's id identifies the call.
            meta = dataclasses.replace(meta, key_from=lambda: f"{root.run_id}/no-decision/{meta.name}/{call_id}")
        if meta.dispatch == "outbox":
            # Its function prepares the request and begins the effect itself, from here.
            root.counts[position.decision_index, meta.name] = position.call_index
            _enter(tool_context, root)
            return None
        begun_effect = await asyncio.to_thread(BegunEffect.begin, meta, root, tool_args, call_index=position.call_index)
        _enter(tool_context, begun_effect.call)
        if begun_effect.is_to_be_performed:
            setattr(tool_context, _BEGUN_EFFECT, begun_effect)
            return None
        try:
            recorded = begun_effect.outcome()
        except EffectFailed as failure:
            return await _answer_for_failed(failure, tool, tool_args, tool_context)
        result = result_from_record(recorded, tool_context)
        is_answered_later = tool.is_long_running or getattr(tool, "_defers_response", False)
        return {} if is_answered_later and result == {"result": None} else result

    async def after_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, result: Any
    ) -> dict[str, Any] | None:
        """Settle the effect with the tool's result and state changes."""
        begun_effect: BegunEffect | None = getattr(tool_context, _BEGUN_EFFECT, None)
        actions = tool_context.actions
        if begun_effect is None or actions.requested_tool_confirmations or actions.requested_auth_configs:
            return None  # its result was recorded already, or it asks for confirmation and has not acted
        setattr(tool_context, _BEGUN_EFFECT, None)
        mine = result_to_record(result, actions)
        recorded = await finish_in_thread(begun_effect.confirm, mine)
        if recorded == mine:
            return None
        return result_from_record(recorded, tool_context)  # another process was faster: use the recorded one

    async def on_tool_error_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, error: BaseException
    ) -> None:
        """Settle the effect as failed or unknown; an interrupted call stays pending and is made again."""
        drive = self._drive(tool_context)
        if drive is None or not isinstance(error, Exception):
            return
        drive.broke(tool_context.function_call_id)
        begun_effect: BegunEffect | None = getattr(tool_context, _BEGUN_EFFECT, None)
        if begun_effect is not None:
            setattr(tool_context, _BEGUN_EFFECT, None)
            setattr(error, REPLACEMENT, await finish_in_thread(begun_effect.fail, error))


def _recall(drive: Drive, branch: str | None) -> LlmResponse | None:
    """The recorded response for the next decision of a branch, with its continuations; None if there is none."""
    response = None
    while drive.may_be_recorded(branch):
        index = drive.next_index(branch)
        found = drive.run.call(drive.run.client.get_decision, decision_index=index)
        if not found.found or (response is not None and not is_continuation(found.decision.response_json)):
            break
        further = response_of(found.decision.response_json)
        response = _marked(further if response is None else joined(response, further), index)
        drive.decided(branch)
    return response


def _marked(response: LlmResponse, index: int) -> LlmResponse:
    response.custom_metadata = {**(response.custom_metadata or {}), MARK: index}
    return response


def _admit(drive: Drive) -> None:
    usd = drive.budget.usd_of(1) if drive.budget else 0.0
    answer = drive.run.call(drive.run.client.admit_budget, usd_estimate=usd, token_estimate=1)
    if not answer.admitted:
        raise BudgetExceeded(f"The budget of run {drive.run.run_id!r} does not allow it: {answer.reason}.")


def _enter(tool_context: ToolContext, call: EffectCall) -> None:
    setattr(tool_context, ATTRIBUTE, call)
    enter(call)  # also for tools without a tool_context parameter


async def _answer_for_failed(
    failure: EffectFailed, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
) -> dict[str, Any]:
    """Run the error callbacks for a recorded failure, as in the first execution; raise it if none answers."""
    context = tool_context._invocation_context
    answer = await context.plugin_manager.run_on_tool_error_callback(
        tool=tool, tool_args=tool_args, tool_context=tool_context, error=failure
    )
    if answer is None:
        given = {"tool": tool, "args": tool_args, "tool_context": tool_context, "error": failure}
        answer = await first_answer(context, "on_tool_error", **given)
    if answer is None:
        raise failure
    return dict(answer)
