"""A compiled graph of LangGraph whose invocations are durable runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langgraph.types import Command, Interrupt, PregelTask, StateSnapshot
from pydantic_core import to_jsonable_python

from tape.client.channel import DEFAULT_URL
from tape.client.sync import TapeClient
from tape.durable.budgets import Budget
from tape.durable.effect_call import find_call, within
from tape.durable.gates import gate
from tape.durable.lease import DEFAULT_TTL_MS
from tape.durable.runs import DurableRun, durable_run
from tape.errors import InvalidInput
from tape.langgraph.nodes import GraphCall, NodeTracker

# Where a checkpoint says which run it belongs to.
RUN = "tape_run"
_RESUME = "__resume__"


class TapeGraph:
    """A graph whose nodes' effects and model calls are recorded, and whose interrupts wait at gates.

    Each `invoke` is a run of its own, named by the thread and `run_id`: give the same `run_id` again to resume it. The
    graph needs a checkpointer, such as `TapeCheckpointer`.
    """

    def __init__(
        self,
        graph: Any,
        app_name: str = "langgraph",
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
        if not getattr(graph, "checkpointer", None):
            raise InvalidInput("The graph has no checkpointer: compile it with checkpointer=TapeCheckpointer(…).")
        self.graph = graph
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

    def invoke(self, input: Any, config: Any, *, run_id: str = "", **options: Any) -> Any:  # noqa: A002 - LangGraph's name
        """Run the graph to its end, or until an interrupt has no answer: RunParked. `options` are those of `invoke`."""
        _check(options)
        with self._durable_run(config, run_id) as run:
            config = _config_of(run, config)
            state = self.graph.get_state(config, subgraphs=True)
            value = input
            if (state.metadata or {}).get(RUN) == run.run_id:  # an earlier execution has got here
                if not state.tasks:  # `next` leaves out tasks whose writes are stored before their step is
                    return state.values
                value = None
            while True:
                if waiting := list(_waiting(state)) if value is not input else []:
                    value = Command(resume={each.id: gate_for(self.graph, task, at) for each, task, at in waiting})
                call = _graph_call()
                with within(call):
                    result = self.graph.invoke(value, _tracked(config, call), durability="sync", **options)
                state = self.graph.get_state(config, subgraphs=True)
                if not list(_waiting(state)):
                    return result
                value = None

    async def ainvoke(self, input: Any, config: Any, *, run_id: str = "", **options: Any) -> Any:  # noqa: A002 - LangGraph's name
        """`invoke` for coroutines."""
        _check(options)
        async with self._durable_run(config, run_id) as run:
            config = _config_of(run, config)
            state = await self.graph.aget_state(config, subgraphs=True)
            value = input
            if (state.metadata or {}).get(RUN) == run.run_id:
                if not state.tasks:
                    return state.values
                value = None
            while True:
                if waiting := list(_waiting(state)) if value is not input else []:
                    value = Command(
                        resume={
                            each.id: await asyncio.to_thread(gate_for, self.graph, task, at)
                            for each, task, at in waiting
                        }
                    )
                call = _graph_call()
                with within(call):
                    result = await self.graph.ainvoke(value, _tracked(config, call), durability="sync", **options)
                state = await self.graph.aget_state(config, subgraphs=True)
                if not list(_waiting(state)):
                    return result
                value = None

    def _durable_run(self, config: Any, run_id: str) -> DurableRun:
        thread_id = str((config or {}).get("configurable", {}).get("thread_id") or "")
        if not thread_id:
            raise InvalidInput("The configuration names no thread: pass {'configurable': {'thread_id': '…'}}.")
        return durable_run(self._app_name, session_id=thread_id, invocation_id=run_id, **self._run)


def _check(options: Mapping[str, Any]) -> None:
    if "durability" in options:
        raise InvalidInput("durability is always 'sync' in a TapeGraph: a node acts once the step before it is stored.")


def _config_of(run: DurableRun, config: Mapping[str, Any]) -> dict[str, Any]:
    return {**config, "metadata": {**config.get("metadata", {}), RUN: run.run_id}}


def _graph_call() -> GraphCall:
    call = find_call()
    assert call is not None
    return GraphCall(call.run, parent=call)


def _tracked(config: dict[str, Any], call: GraphCall) -> dict[str, Any]:
    return {**config, "callbacks": [*(config.get("callbacks") or ()), NodeTracker(call)]}


def _waiting(state: StateSnapshot) -> Iterator[tuple[Interrupt, PregelTask, StateSnapshot]]:
    """Interrupts without an answer, also those of subgraphs, with their task and its state."""
    for task in state.tasks:
        if isinstance(task.state, StateSnapshot) and task.state.tasks:
            yield from _waiting(task.state)
        elif task.result is None:
            for interrupt in task.interrupts[:1]:
                yield interrupt, task, state


def gate_for(graph: Any, task: PregelTask, state: StateSnapshot) -> Any:
    """The answer to an interrupt at the gate `interrupt:<node>:<step>:<number>`; parks where there is none."""
    found = graph.checkpointer.get_tuple(state.config)
    resumed = [
        value
        for task_id, channel, value in (found.pending_writes or [] if found else [])
        if channel == _RESUME and task_id == task.id
    ]
    number = sum(len(value) if isinstance(value, list) else 1 for value in resumed)
    step = (state.metadata or {}).get("step", -1) + 1
    shown = to_jsonable_python(task.interrupts[0].value, serialize_unknown=True)
    answer = gate(f"interrupt:{task.name}:{step}:{number}", payload={"node": task.name, "value": shown})
    return answer["value"] if answer.keys() == {"value"} else answer
