"""A runner of the OpenAI Agents SDK whose runs are durable."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from agents import Agent, RunConfig, Runner, RunResult, RunResultStreaming
from agents.items import ToolApprovalItem
from agents.models.interface import Model

from tape.client.channel import DEFAULT_URL
from tape.client.sync import TapeClient
from tape.durable.agent_calls import AgentCalls
from tape.durable.budgets import Budget
from tape.durable.effect_call import find_call
from tape.durable.gates import gate
from tape.durable.lease import DEFAULT_TTL_MS
from tape.durable.runs import durable_run
from tape.errors import InvalidInput, TapeError
from tape.openai_agents.model import RecordedModelProvider, agent_calls, durable_model
from tape.openai_agents.records import arguments_of
from tape.openai_agents.tools import durable_agent


class TapeRunner:
    """Runs agents as `Runner` does; model calls and tool calls are recorded, so that a killed process can be resumed.

    Called within `tape.durable_run(...)`, an agent is part of that run. Otherwise each call is a run of its own, named
    by `run_id`: give the same one again to resume it. Tools that need approval wait at gates.
    """

    def __init__(
        self,
        app_name: str = "openai-agents",
        *,
        user_id: str = "",
        url: str = "",
        client: TapeClient | None = None,
        budget: Budget | None = None,
        lease_owner: str = "",
        lease_ttl_ms: int = DEFAULT_TTL_MS,
        lease_wait_s: float = 0.0,
        scopes: Sequence[str] | None = None,
        labels: Mapping[str, str] | None = None,
        on_change: str = "warn",
    ) -> None:
        self._app_name = app_name
        self._run: dict[str, Any] = {
            "user_id": user_id,
            "url": url or os.environ.get("TAPE_URL") or DEFAULT_URL,
            "client": client,
            "budget": budget,
            "lease_owner": lease_owner,
            "lease_ttl_ms": lease_ttl_ms,
            "lease_wait_s": lease_wait_s,
            "scopes": scopes,
            "labels": labels,
            "on_change": on_change,
        }

    async def run(self, starting_agent: Agent[Any], input: Any, *, run_id: str = "", **options: Any) -> RunResult:  # noqa: A002 - the SDK's name
        """Run an agent to its final output; `options` are those of `Runner.run`."""
        options["run_config"] = _durable_config(options.get("run_config"))
        async with self._calls(starting_agent, run_id, options) as calls:
            result = await Runner.run(starting_agent, input, **options)
            while result.interruptions:
                state = result.to_state()
                for item in result.interruptions:
                    await _answer_at_gate(calls, state, item)
                result = await Runner.run(starting_agent, state, **_of_resumption(options))
            return result

    def run_sync(self, starting_agent: Agent[Any], input: Any, *, run_id: str = "", **options: Any) -> RunResult:  # noqa: A002 - the SDK's name
        """`run` for code without an event loop."""
        return asyncio.run(self.run(starting_agent, input, run_id=run_id, **options))

    @asynccontextmanager
    async def run_streamed(
        self,
        starting_agent: Agent[Any],
        input: Any,  # noqa: A002 - the SDK's name
        *,
        run_id: str = "",
        **options: Any,
    ) -> AsyncIterator[RunResultStreaming]:
        """Run an agent in an `async with` block, which reads the events; the run ends with the block."""
        options["run_config"] = _durable_config(options.get("run_config"))
        async with self._calls(starting_agent, run_id, options) as calls:
            result = Runner.run_streamed(starting_agent, input, **options)
            yield result
            async for _ in result.stream_events():
                pass  # what the block has left
            for item in result.interruptions:
                await _answer_at_gate(calls, result.to_state(), item)
                raise InvalidInput(
                    "The approval was given: resume the run with TapeRunner.run, which goes on after it."
                )

    @asynccontextmanager
    async def _calls(self, agent: Agent[Any], run_id: str, options: Mapping[str, Any]) -> AsyncIterator[AgentCalls]:
        """The calls of one execution of an agent: in the current run, or in one of its own."""
        durable_agent(agent)
        async with AsyncExitStack() as block:
            call = find_call()
            if call is not None:
                calls = AgentCalls.beside_others(call, agent.name, on_change=self._run["on_change"])
            else:
                session = str(getattr(options.get("session"), "session_id", "") or "")
                await block.enter_async_context(
                    durable_run(self._app_name, session_id=session, invocation_id=run_id, **self._run)
                )
                call = find_call()
                assert call is not None
                calls = AgentCalls(call, agent.name, on_change=self._run["on_change"])
            token = agent_calls.set(calls)
            try:
                yield calls
            except Exception as error:
                if (cause := _unwrapped(error)) is error:
                    raise
                raise cause from error
            finally:
                agent_calls.reset(token)


def _durable_config(given: Any) -> RunConfig:
    config = RunConfig(**given) if isinstance(given, dict) else given or RunConfig()
    if not isinstance(config.model_provider, RecordedModelProvider):
        config = dataclasses.replace(config, model_provider=RecordedModelProvider(config.model_provider))
    if isinstance(config.model, Model):
        config = dataclasses.replace(config, model=durable_model(config.model))
    return config


def _of_resumption(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options for a state, which has the conversation and the context itself."""
    left_out = ("context", "previous_response_id", "conversation_id", "auto_previous_response_id")
    return {name: value for name, value in options.items() if name not in left_out}


async def _answer_at_gate(calls: AgentCalls, state: Any, item: ToolApprovalItem) -> None:
    """Approve or reject a tool call as its gate is answered; parks where there is no answer."""
    raw = item.raw_item
    call_id = str(raw.get("call_id", "") if isinstance(raw, dict) else getattr(raw, "call_id", ""))
    arguments = str(raw.get("arguments", "") if isinstance(raw, dict) else getattr(raw, "arguments", ""))
    tool = item.tool_name or "tool"
    payload = {"tool": tool, "arguments": arguments_of(arguments), "agent": item.agent.name}
    answer = await asyncio.to_thread(gate, calls.gate_name("approve", tool, call_id), payload=payload)
    if answer.get("approved", answer.get("value")) is True:
        state.approve(item)
    else:
        state.reject(item, rejection_message=answer.get("message"))


def _unwrapped(error: Exception) -> Exception:
    """The error of Tape behind one that the SDK raised: it wraps exceptions of tools."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, TapeError):
        cause = cause.__cause__
    return cause if isinstance(cause, TapeError) else error
