"""Agents whose model calls are decisions and whose tool calls are effects, with all that they can reach."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from agents import Agent, FunctionTool, Handoff, Tool
from agents.models.interface import Model
from agents.tool_context import ToolContext

from tape.durable.agent_calls import AgentCalls
from tape.durable.declaration import EffectMeta, meta_of
from tape.durable.effect_call import within
from tape.openai_agents.model import agent_calls, durable_model
from tape.openai_agents.records import arguments_of, result_from_record, result_to_record

_DURABLE = "_tape_durable"
Invoke = Callable[[ToolContext[Any], str], Awaitable[Any]]
AgentT = TypeVar("AgentT", bound=Agent[Any])


def durable_agent(agent: AgentT) -> AgentT:
    """Let an agent, and those that it hands off to or calls as tools, record their calls; returns the same agent.

    Within a run model calls are decisions and tool calls effects; outside of one the agents work as before.
    `TapeRunner` does this for the agent that it runs.
    """
    if getattr(agent, _DURABLE, False):
        return agent
    setattr(agent, _DURABLE, True)
    if isinstance(agent.model, Model):
        agent.model = durable_model(agent.model)
    agent.tools = [_durable_tool(tool) for tool in agent.tools]
    agent.handoffs = [_durable_handoff(handoff) for handoff in agent.handoffs]
    mcp_tools = agent.get_mcp_tools

    async def durable_mcp_tools(run_context: Any) -> list[Tool]:
        return [_durable_tool(tool) for tool in await mcp_tools(run_context)]

    agent.get_mcp_tools = durable_mcp_tools  # type: ignore[method-assign]  # MCP tools are made anew for each turn
    return agent


def _durable_handoff(handoff: Any) -> Any:
    if isinstance(handoff, Agent):
        return durable_agent(handoff)
    assert isinstance(handoff, Handoff)
    invoke = handoff.on_invoke_handoff

    async def hand_off(*arguments: Any) -> Any:
        return durable_agent(await invoke(*arguments))

    return dataclasses.replace(handoff, on_invoke_handoff=hand_off)


def _durable_tool(tool: Tool) -> Tool:
    if not isinstance(tool, FunctionTool) or getattr(tool.on_invoke_tool, _DURABLE, False):
        return tool  # hosted tools run within the model's call
    inner = getattr(tool, "_agent_instance", None)
    invoke = _nested(tool, durable_agent(inner)) if isinstance(inner, Agent) else _effect(tool)
    setattr(invoke, _DURABLE, True)
    return dataclasses.replace(tool, on_invoke_tool=invoke)


def _effect(tool: FunctionTool) -> Invoke:
    """A tool that is called once for each call that a decision asks for."""
    invoke, output_type = tool.on_invoke_tool, tool._output_type_adapter

    async def call(context: ToolContext[Any], arguments: str) -> Any:
        calls = agent_calls.get()
        if calls is None:
            return await invoke(context, arguments)

        async def body() -> Any:
            return result_to_record(await invoke(context, arguments), output_type)

        recorded = await calls.perform(
            tool.name, context.tool_call_id, arguments_of(arguments), body, declared=_declaration(tool)
        )
        return result_from_record(recorded, output_type)

    return call


def _nested(tool: FunctionTool, agent: Agent[Any]) -> Invoke:
    """An agent that is called as a tool: not an effect itself, but its calls are decisions and effects of the run."""
    invoke = tool.on_invoke_tool

    async def call(context: ToolContext[Any], arguments: str) -> Any:
        calls = agent_calls.get()
        if calls is None:
            return await invoke(context, arguments)
        inner: AgentCalls = calls.nested(tool.name, context.tool_call_id, agent.name)
        token = agent_calls.set(inner)
        try:
            with within(inner.call):
                return await invoke(context, arguments)
        finally:
            agent_calls.reset(token)

    return call


def _declaration(tool: FunctionTool) -> EffectMeta | None:
    """What `@tape.effect` says about the function behind a tool."""
    try:
        return meta_of(tool.__wrapped__)
    except AttributeError:  # a tool that was not made from a function
        return None
