"""The model and the toolsets of a durable agent: each request is a decision, each tool call an effect."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry, ToolFailed
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models import CompletedStreamedResponse, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolApproved, ToolDenied
from pydantic_ai.toolsets import WrapperToolset
from pydantic_ai.toolsets.abstract import ToolsetTool

from tape.durable.agent_calls import AgentCalls
from tape.durable.declaration import EffectMeta, meta_of
from tape.durable.gates import gate
from tape.pydantic_ai.records import (
    RESPONSES,
    arguments_to_record,
    conversation_of,
    refusal_to_record,
    result_from_record,
    result_to_record,
)

# The calls of the agent that runs in this context.
agent_calls: contextvars.ContextVar[AgentCalls] = contextvars.ContextVar("tape_pydantic_ai_calls")


class TapeModel(WrapperModel):
    """A model whose responses are decisions of the run."""

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """The response on record, or the model's, recorded before it is used."""
        calls = agent_calls.get()
        response, _ = await calls.decide(
            lambda: self.wrapped.request(messages, model_settings, model_request_parameters),
            RESPONSES,
            model=self.wrapped.model_name,
            provider=self.wrapped.system,
            conversation=conversation_of(messages),
        )
        return response

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """The events of a response, once it is on record."""
        events: list[Any] = []

        async def drain() -> ModelResponse:
            wrapped = self.wrapped.request_stream(messages, model_settings, model_request_parameters, run_context)
            async with wrapped as stream:
                async for event in stream:
                    events.append(event)
            return stream.get()

        response, is_recorded = await agent_calls.get().decide(
            drain,
            RESPONSES,
            model=self.wrapped.model_name,
            provider=self.wrapped.system,
            conversation=conversation_of(messages),
        )
        yield CompletedStreamedResponse(
            response,
            model_request_parameters=model_request_parameters,
            replay_events=True if is_recorded else events,
        )


@dataclass
class TapeToolset(WrapperToolset[Any]):
    """A toolset, also one of an MCP server, whose tool calls are effects of the run."""

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """The result on record, or the tool's."""

        async def body() -> Any:
            try:
                return result_to_record(await self.wrapped.call_tool(name, tool_args, ctx, tool))
            except (ModelRetry, ToolFailed) as refusal:
                return refusal_to_record(refusal)

        recorded = await agent_calls.get().perform(
            name,
            ctx.tool_call_id or "",
            arguments_to_record(tool_args),
            body,
            declared=_declaration(tool),
            leaves_open=(ApprovalRequired, CallDeferred),
        )
        return result_from_record(recorded)


def _declaration(tool: ToolsetTool[Any]) -> EffectMeta | None:
    """What `@tape.effect` says about the function behind a tool."""
    call = getattr(tool, "call_func", None)  # a bound method of the schema that has the function
    return meta_of(getattr(getattr(call, "__self__", None), "function", None))


async def answer_at_gates(_: RunContext[Any], requests: DeferredToolRequests) -> DeferredToolResults:
    """The answers to deferred tool calls, each at a gate of the run; parks at the first that has none."""
    approvals: dict[str, bool | ToolApproved | ToolDenied] = {}
    calls: dict[str, Any] = {}
    for part in requests.approvals:
        approvals[part.tool_call_id] = _approval(await _ask("approve", part, requests))
    for part in requests.calls:
        calls[part.tool_call_id] = await _ask("call", part, requests)
    return requests.build_results(approvals=approvals, calls=calls)


async def _ask(kind: str, part: ToolCallPart, requests: DeferredToolRequests) -> dict[str, Any]:
    name = agent_calls.get().gate_name(kind, part.tool_name, part.tool_call_id)
    payload = {"tool": part.tool_name, "arguments": arguments_to_record(part.args_as_dict())}
    if metadata := requests.metadata.get(part.tool_call_id):
        payload["metadata"] = arguments_to_record(metadata)
    return await asyncio.to_thread(gate, name, payload=payload)


def _approval(answer: dict[str, Any]) -> ToolApproved | ToolDenied:
    if answer.get("approved", answer.get("value")) is True:
        return ToolApproved(override_args=answer.get("override_args"))
    message = answer.get("message")
    return ToolDenied(message) if message else ToolDenied()
