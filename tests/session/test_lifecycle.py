"""What workflows record: steps, turns, branches, subagents, failed attempts."""

from __future__ import annotations

import sys
import types
from types import SimpleNamespace
from typing import Any

import pytest

from tape import EventBus, SessionPlugin, SessionTape, WorkflowLifecyclePlugin, active_bus, subagent, use_bus
from tape.errors import InvalidInput
from tape.session import adk


class Agent:
    """An agent as frameworks have them: a name, children, and callbacks around its run."""

    def __init__(self, name: str, *children: Agent) -> None:
        self.name = name
        self.children = children
        self.parent_agent: Agent | None = None
        for child in children:
            child.parent_agent = self

    async def run(self, plugin: Any, context: Any) -> None:
        await plugin.before_agent_callback(agent=self, callback_context=context)
        await self.work(plugin, context)
        await plugin.after_agent_callback(agent=self, callback_context=context)

    async def work(self, plugin: Any, context: Any) -> None:
        for child in self.children:
            await child.run(plugin, context)


class LoopAgent(Agent):
    turns = 3

    async def work(self, plugin: Any, context: Any) -> None:
        for _ in range(self.turns):
            await super().work(plugin, context)


class ParallelAgent(Agent):
    pass


class RetryAgent(Agent):
    pass


CONTEXT = SimpleNamespace(invocation_id="i-1", agent_name="root")


async def record(root: Agent, **options: Any) -> list[tuple[Any, ...]]:
    tape = SessionTape()
    await root.run(WorkflowLifecyclePlugin(tape=tape, **options), CONTEXT)
    names = ("agent_name", "loop_name", "branch_name")
    return [
        (e["kind"], next(e[n] for n in names if n in e), e.get("iteration", e.get("branch_index"))) for e in tape.events
    ]


async def test_every_step_has_a_beginning_and_an_end_and_knows_its_parent() -> None:
    tape = SessionTape()
    await Agent("root", Agent("a")).run(WorkflowLifecyclePlugin(tape=tape), CONTEXT)
    started, inner, ended, _ = tape.events
    assert (started["kind"], started["agent_type"], started["parent_name"]) == ("step_started", "Agent", "")
    assert (inner["agent_name"], inner["parent_name"]) == ("a", "root")
    assert (ended["kind"], ended["agent_name"]) == ("step_completed", "a")
    assert ended["duration_ms"] >= 0


async def test_a_loop_has_one_pair_of_iterations_per_turn() -> None:
    seen = await record(LoopAgent("loop", Agent("a"), Agent("b")), emit_step_events=False)
    assert seen == [(kind, "loop", turn) for turn in range(3) for kind in ("iteration_started", "iteration_completed")]
    steps = await record(LoopAgent("loop", Agent("a"), Agent("b")), emit_iteration_events=False)
    assert len(steps) == 2 + 3 * 4


async def test_a_fan_out_has_one_pair_per_branch() -> None:
    seen = await record(ParallelAgent("fan", Agent("a"), Agent("b")), emit_step_events=False)
    assert seen == [
        ("branch_started", "a", 0),
        ("branch_completed", "a", 0),
        ("branch_started", "b", 1),
        ("branch_completed", "b", 1),
    ]
    assert await record(ParallelAgent("f", Agent("a")), emit_step_events=False, emit_branch_events=False) == []


async def test_retries_and_fallbacks_record_the_attempt_that_failed() -> None:
    tape = SessionTape()
    first, second = Agent("first"), Agent("second")
    await RetryAgent("retry", first, second).run(WorkflowLifecyclePlugin(tape=tape), CONTEXT)
    failed = tape.filter("attempt_failed")
    assert [(entry["agent_name"], entry["attempt_index"]) for entry in failed] == [("retry", 0)]
    assert "second takes over" in failed[0]["error"]


async def test_failed_model_and_tool_calls_are_counted_per_agent() -> None:
    tape = SessionTape()
    plugin = WorkflowLifecyclePlugin(tape=tape)
    await plugin.on_model_error_callback(callback_context=CONTEXT, llm_request=None, error=TimeoutError("slow"))
    await plugin.on_tool_error_callback(tool=None, tool_args={}, tool_context=CONTEXT, error=ValueError("no"))
    plugin.attempt_failed("root", "by hand", attempt_index=7)
    assert [(entry["attempt_index"], entry["error"]) for entry in tape.filter("attempt_failed")] == [
        (0, "TimeoutError: slow"),
        (1, "ValueError: no"),
        (7, "by hand"),
    ]


async def test_subagents_are_recorded_on_the_active_bus_with_their_outcome() -> None:
    bus = EventBus()
    tape = bus.tape()
    with use_bus(bus):
        with subagent("researcher", "find it") as output:
            output.append("found")
        with pytest.raises(ValueError), subagent("writer"):
            raise ValueError("blocked")
    kinds = [(e["kind"], e["role"], e.get("is_error"), e.get("output_preview")) for e in tape.events]
    assert kinds == [
        ("subagent_started", "researcher", None, None),
        ("subagent_completed", "researcher", False, "found"),
        ("subagent_started", "writer", None, None),
        ("subagent_completed", "writer", True, "ValueError: blocked"),
    ]


async def test_agents_find_the_bus_of_the_plugin() -> None:
    bus = EventBus()

    class Asking(Agent):
        async def work(self, plugin: Any, context: Any) -> None:
            assert active_bus() is bus

    with use_bus(None):
        await Asking("a").run(WorkflowLifecyclePlugin(bus), CONTEXT)


async def test_two_invocations_at_once_do_not_mix() -> None:
    tape = SessionTape()
    plugin = WorkflowLifecyclePlugin(tape=tape, emit_step_events=False)
    loops = [LoopAgent("loop", Agent("a")) for _ in range(2)]
    contexts = [SimpleNamespace(invocation_id=f"i-{number}") for number in range(2)]
    for loop, context in zip(loops, contexts, strict=True):
        await plugin.before_agent_callback(agent=loop, callback_context=context)
        await loop.children[0].run(plugin, context)
    assert [entry["iteration"] for entry in tape.events] == [0, 0]
    for loop, context in zip(loops, contexts, strict=True):
        await plugin.after_agent_callback(agent=loop, callback_context=context)
    assert plugin._invocations == {}


def test_it_needs_exactly_one_target() -> None:
    with pytest.raises(InvalidInput, match="tape= or bus="):
        WorkflowLifecyclePlugin()
    with pytest.raises(InvalidInput, match="tape= or bus="):
        WorkflowLifecyclePlugin(EventBus(), tape=SessionTape())


def test_where_google_adk_is_installed_it_is_one_of_its_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    class BasePlugin:
        """As google-adk has it: abstract only in its constructor."""

        def __init__(self, name: str) -> None:
            self.name = name

        async def before_run_callback(self, *, invocation_context: Any) -> None:
            return None

    module = types.ModuleType("google.adk.plugins.base_plugin")
    module.BasePlugin = BasePlugin  # type: ignore[attr-defined]
    module.__spec__ = SimpleNamespace(name=module.__name__)  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("google.adk", "google.adk.plugins"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr(adk, "_classes", {})
    plugin = WorkflowLifecyclePlugin(tape=SessionTape(), name="mine")
    assert isinstance(plugin, BasePlugin)
    assert isinstance(plugin, WorkflowLifecyclePlugin)
    assert plugin.name == "mine"
    assert isinstance(SessionPlugin(), BasePlugin)
