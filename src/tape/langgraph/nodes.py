"""Where in a graph code runs: the calls of each node have keys that are the same when the graph is resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables.config import var_child_runnable_config

from tape.durable.agent_calls import AgentCalls
from tape.durable.effect_call import EffectCall


@dataclass(eq=False)
class NodeCall(EffectCall):
    """One execution of a node. Effects and decisions within it are numbered from its beginning."""

    node: str = ""
    calls: AgentCalls | None = None

    def agent_calls(self) -> AgentCalls:
        """The model and tool calls of this execution."""
        if self.calls is None:
            self.calls = AgentCalls(self, self.node, space=self.idempotency_key)
        return self.calls


@dataclass(eq=False)
class GraphCall(EffectCall):
    """One execution of a graph: finds the node that the current code belongs to."""

    positions: dict[str, str] = field(default_factory=dict)
    nodes: dict[tuple[str, int], NodeCall] = field(default_factory=dict)

    def here(self) -> EffectCall:
        """The current node's call; that of the run outside of nodes."""
        config: Mapping[str, Any] = var_child_runnable_config.get() or {}
        metadata = config.get("metadata") or {}
        namespace = metadata.get("langgraph_checkpoint_ns")
        if not namespace:
            return self
        self.note(metadata)
        where = "/".join(self.positions.get(each, each) for each in str(namespace).split("|"))
        runtime = (config.get("configurable") or {}).get("__pregel_runtime")
        attempt = getattr(getattr(runtime, "execution_info", None), "node_attempt", 1)
        key = (where, attempt)
        if key not in self.nodes:
            self.nodes[key] = NodeCall(
                self.run,
                idempotency_key=f"{self.run_id}/{where}",
                parent=self,
                node=str(metadata.get("langgraph_node", "node")),
            )
        return self.nodes[key]

    def note(self, metadata: Mapping[str, Any]) -> None:
        """Note the step of a node. Its task id is made anew if its checkpoint was lost; its step and path are not."""
        task = str(metadata["langgraph_checkpoint_ns"]).rpartition("|")[2]
        kind, *path = metadata.get("langgraph_path", ("",))
        number = ":" + ".".join(map(str, path)) if kind == "__pregel_push" else ""
        self.positions[task] = f"{metadata.get('langgraph_node')}:{metadata.get('langgraph_step')}{number}"


class NodeTracker(BaseCallbackHandler):
    """Sees each node begin, also those whose subgraphs make the calls."""

    run_inline = True

    def __init__(self, call: GraphCall) -> None:
        self._call = call

    def on_chain_start(self, serialized: Any, inputs: Any, *, metadata: Any = None, **_: Any) -> None:
        """Note the step of a node."""
        if metadata and metadata.get("langgraph_checkpoint_ns"):
            self._call.note(metadata)
