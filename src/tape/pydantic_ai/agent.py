"""An agent of Pydantic AI whose runs are durable."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from pydantic_ai.agent import AbstractAgent, AgentRun, WrapperAgent
from pydantic_ai.capabilities import HandleDeferredToolCalls
from pydantic_ai.models import infer_model
from pydantic_ai.output import OutputDataT
from pydantic_ai.tools import AgentDepsT

from tape.client.channel import DEFAULT_URL
from tape.client.sync import TapeClient
from tape.durable.agent_calls import AgentCalls
from tape.durable.budgets import Budget
from tape.durable.effect_call import find_call
from tape.durable.lease import DEFAULT_TTL_MS
from tape.durable.runs import durable_run
from tape.errors import InvalidInput
from tape.pydantic_ai.calls import TapeModel, TapeToolset, agent_calls, answer_at_gates


class TapeAgent(WrapperAgent[AgentDepsT, OutputDataT]):
    """An agent whose model requests and tool calls are recorded, so that a killed process is carried on by another.

    Called within `tape.durable_run(...)` or a tool of another durable agent, it is part of that run. Otherwise each
    call of the agent is a run of its own: `run_id` is its invocation id, `conversation_id` its session; give the same
    `run_id` again to resume it. Tools that need approval, and external ones, wait at gates.
    """

    def __init__(
        self,
        wrapped: AbstractAgent[AgentDepsT, OutputDataT],
        *,
        app_name: str = "",
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
        super().__init__(wrapped)
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
        self._app_name = app_name or wrapped.name or "pydantic-ai"

    @asynccontextmanager
    async def iter(  # the arguments pass through: they are those of the installed version
        self, user_prompt: Any = None, **arguments: Any
    ) -> AsyncGenerator[AgentRun[AgentDepsT, Any]]:
        """Iterate over the agent's nodes; arguments are those of `Agent.iter`."""
        model = arguments.pop("model", None) or self.wrapped.model
        if model is None:
            raise InvalidInput("The agent has no model: give it one, or pass model=… to the run.")
        toolsets = [*self.wrapped.toolsets, *(arguments.pop("toolsets", None) or ())]
        durable = [toolset.visit_and_replace(_durable) for toolset in toolsets]
        gates: Any = HandleDeferredToolCalls(handler=answer_at_gates)
        arguments["capabilities"] = [*(arguments.get("capabilities") or ()), gates]
        async with AsyncExitStack() as block:
            calls = await self._enter_run(block, arguments)
            token = agent_calls.set(calls)
            try:
                with self.wrapped.override(model=TapeModel(infer_model(model)), toolsets=durable, tools=[]):
                    async with self.wrapped.iter(user_prompt, **arguments) as agent_run:
                        yield agent_run
            finally:
                agent_calls.reset(token)

    async def _enter_run(self, block: AsyncExitStack, arguments: dict[str, Any]) -> AgentCalls:
        """The calls of this execution: in the current run, or in one that lasts as long as `block`."""
        name = self.wrapped.name or "agent"
        call = find_call()
        if call is not None:
            return AgentCalls.beside_others(call, name, on_change=self._run["on_change"])
        run = durable_run(
            self._app_name,
            session_id=arguments.get("conversation_id") or "",
            invocation_id=arguments.get("run_id") or "",
            **self._run,
        )
        await block.enter_async_context(run)
        call = find_call()
        assert call is not None
        return AgentCalls(call, name, on_change=self._run["on_change"])


def _durable(toolset: Any) -> Any:
    return toolset if isinstance(toolset, TapeToolset) else TapeToolset(toolset)
