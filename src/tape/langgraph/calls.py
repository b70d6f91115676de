"""Chat models whose answers are decisions of the run, and nodes of tools whose calls are effects."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage, message_to_dict, messages_from_dict
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.prebuilt import ToolNode

from tape.base.telemetry.genai import TokenUsage
from tape.durable.agent_calls import AgentCalls, RequestedCall, ResponseCodec
from tape.durable.callback_arguments import finish
from tape.durable.declaration import meta_of
from tape.durable.effect_call import find_call
from tape.langgraph.nodes import NodeCall

_SERDE = JsonPlusSerializer()


def _current_calls() -> AgentCalls | None:
    call = find_call()
    if call is None:
        return None
    return call.agent_calls() if isinstance(call, NodeCall) else AgentCalls.beside_others(call, "graph")


# ── models ───────────────────────────────────────────────────────────────────────────────────────


def durable_model(model: BaseChatModel) -> BaseChatModel:
    """A chat model that is asked once for each decision of a run; outside of a run it is the given one."""
    return RecordedChatModel(wrapped=model)


class RecordedChatModel(BaseChatModel):
    """A chat model whose answers are recorded before they are used. Answers come whole: it does not stream tokens."""

    wrapped: BaseChatModel

    @property
    def _llm_type(self) -> str:
        return f"recorded-{self.wrapped._llm_type}"

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> Any:
        """The model with tools, as the given one describes them."""
        bound: Any = self.wrapped.bind_tools(tools, **options)
        return self.bind(**bound.kwargs)

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **options: Any
    ) -> ChatResult:
        calls = _current_calls()
        if calls is None:
            return self.wrapped._generate(messages, stop, run_manager, **options)

        async def ask() -> AIMessage:
            return _answer(self.wrapped._generate(messages, stop, None, **options))

        message, _ = finish(calls.decide(ask, _RESPONSES, **self._described(messages)))
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _agenerate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **options: Any
    ) -> ChatResult:
        calls = _current_calls()
        if calls is None:
            return await self.wrapped._agenerate(messages, stop, run_manager, **options)

        async def ask() -> AIMessage:
            return _answer(await self.wrapped._agenerate(messages, stop, None, **options))

        message, _ = await calls.decide(ask, _RESPONSES, **self._described(messages))
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _described(self, messages: list[BaseMessage]) -> dict[str, Any]:
        described = self.wrapped._get_ls_params()
        shown = [
            [message.type, message.content, [call["args"] for call in getattr(message, "tool_calls", [])]]
            for message in messages
        ]
        return {
            "model": described.get("ls_model_name") or type(self.wrapped).__name__,
            "provider": described.get("ls_provider") or "",
            "conversation": json.loads(json.dumps(shown, default=str)),
        }


def _answer(result: ChatResult) -> AIMessage:
    message = result.generations[0].message
    assert isinstance(message, AIMessage)
    return message


def _message_from_json(text: str) -> AIMessage:
    [message] = messages_from_dict([json.loads(text)["message"]])
    assert isinstance(message, AIMessage)
    return message


def _usage(message: AIMessage) -> TokenUsage:
    used = message.usage_metadata
    return TokenUsage(used["input_tokens"], used["output_tokens"]) if used else TokenUsage()


_RESPONSES: ResponseCodec[AIMessage] = ResponseCodec(
    to_json=lambda message: json.dumps({"message": message_to_dict(message)}),
    from_json=_message_from_json,
    tool_calls=lambda message: [RequestedCall(str(call["id"] or ""), call["name"]) for call in message.tool_calls],
    usage=_usage,
    model=lambda message: str(message.response_metadata.get("model_name", "")),
)


# ── tools ────────────────────────────────────────────────────────────────────────────────────────


def durable_tool_node(tools: Sequence[Any], **options: Any) -> ToolNode:
    """A `ToolNode` whose tool calls are effects of the run; `options` are those of `ToolNode`."""
    return ToolNode(tools, wrap_tool_call=_call_tool, awrap_tool_call=_acall_tool, **options)


def _call_tool(request: Any, execute: Callable[[Any], Any]) -> Any:
    calls = _current_calls()
    if calls is None:
        return execute(request)

    async def body() -> Any:
        return _result_to_record(execute(request))

    return _result_from_record(finish(_perform(calls, request, body)))


async def _acall_tool(request: Any, execute: Callable[[Any], Awaitable[Any]]) -> Any:
    calls = _current_calls()
    if calls is None:
        return await execute(request)

    async def body() -> Any:
        return _result_to_record(await execute(request))

    return _result_from_record(await _perform(calls, request, body))


async def _perform(calls: AgentCalls, request: Any, body: Callable[[], Awaitable[Any]]) -> Any:
    call = request.tool_call
    arguments = json.loads(json.dumps(call["args"], default=str))
    return await calls.perform(call["name"], str(call["id"] or ""), arguments, body, declared=meta_of(request.tool))


def _result_to_record(result: Any) -> dict[str, Any]:
    if isinstance(result, ToolMessage):
        return {"message": json.loads(json.dumps(message_to_dict(result), default=str))}
    kind, data = _SERDE.dumps_typed(result)  # a command
    return {"type": kind, "data": base64.b64encode(data).decode()}


def _result_from_record(recorded: Any) -> Any:
    if "message" in recorded:
        return messages_from_dict([recorded["message"]])[0]
    return _SERDE.loads_typed((recorded["type"], base64.b64decode(recorded["data"])))
