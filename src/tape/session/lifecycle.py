"""What a workflow does, on the tape: steps, turns of loops, branches of fan-outs, subagents, failed attempts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tape.errors import InvalidInput
from tape.session.adk import as_adk_plugin
from tape.session.bus import EventBus, emit, name_of, set_active_bus
from tape.session.events import (
    AttemptFailed,
    BranchCompleted,
    BranchStarted,
    IterationCompleted,
    IterationStarted,
    StepCompleted,
    StepStarted,
    SubagentCompleted,
    SubagentStarted,
)
from tape.session.tape import SessionTape

MAX_TEXT = 500
MAX_INVOCATIONS = 1_000


@dataclass
class _Loop:
    first_child: str
    iteration: int = 0


@dataclass
class _Invocation:
    """What is going on in one invocation of the root agent."""

    began: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    loops: dict[str, _Loop] = field(default_factory=dict)
    branches: dict[str, dict[str, int]] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    running: int = 0


class WorkflowLifecyclePlugin:
    """Records what the agents of a workflow do, on a `tape` or a `bus`.

    Agents are distinguished by their class names (LoopAgent, ParallelAgent, and those with Retry or Fallback in
    their names), so it works with any framework that calls `before_agent_callback` and `after_agent_callback`; where
    google-adk is installed, it is one of its plugins. It is the active bus of the agents it sees.
    """

    def __new__(cls, *arguments: Any, **options: Any) -> WorkflowLifecyclePlugin:
        """An instance that is also a plugin of google-adk where that is installed."""
        return object.__new__(as_adk_plugin(cls))

    def __init__(
        self,
        bus: EventBus | None = None,
        *,
        tape: SessionTape | None = None,
        emit_step_events: bool = True,
        emit_iteration_events: bool = True,
        emit_branch_events: bool = True,
        name: str = "tape_workflow_lifecycle",
    ) -> None:
        if (bus is None) == (tape is None):
            raise InvalidInput("Give either tape= or bus=: the target of the events.")
        if bus is None:
            bus = EventBus()
            assert tape is not None
            bus.subscribe(tape.record)
        self.name = name
        self.bus = bus
        self._steps = emit_step_events
        self._iterations = emit_iteration_events
        self._branches = emit_branch_events
        self._invocations: dict[str, _Invocation] = {}

    # ── what frameworks call ─────────────────────────────────────────────────────────────────────

    async def before_agent_callback(self, *, agent: Any = None, callback_context: Any = None, **_: Any) -> None:
        """An agent begins."""
        set_active_bus(self.bus)
        going_on = self._invocation(callback_context)
        going_on.running += 1
        name, parent = _agent_name(agent, callback_context), getattr(agent, "parent_agent", None)
        parent_name = name_of(parent) if parent is not None else ""
        if _is_a(parent, "LoopAgent"):
            self._turn(going_on, parent_name, name)
        if _is_a(parent, "ParallelAgent"):
            indexes = going_on.branches.setdefault(parent_name, {})
            branch = indexes.setdefault(name, len(indexes))
            if self._branches:
                self.bus.emit(BranchStarted(fanout_name=parent_name, branch_name=name, branch_index=branch))
        if _is_retry(parent):
            self._next_attempt(going_on, parent_name, name)
        if self._steps:
            self.bus.emit(StepStarted(agent_name=name, agent_type=_type_of(agent), parent_name=parent_name))
        going_on.began.setdefault((name, _branch_of(callback_context)), []).append(time.perf_counter())

    async def after_agent_callback(self, *, agent: Any = None, callback_context: Any = None, **_: Any) -> None:
        """An agent has ended."""
        going_on = self._invocation(callback_context)
        name, parent = _agent_name(agent, callback_context), getattr(agent, "parent_agent", None)
        parent_name = name_of(parent) if parent is not None else ""
        began = going_on.began.get((name, _branch_of(callback_context)))
        duration = round((time.perf_counter() - began.pop()) * 1_000, 3) if began else 0.0
        if _is_a(agent, "LoopAgent"):
            self._last_turn(going_on, name)
        if self._steps:
            self.bus.emit(
                StepCompleted(
                    agent_name=name, agent_type=_type_of(agent), parent_name=parent_name, duration_ms=duration
                )
            )
        if _is_a(parent, "ParallelAgent") and self._branches:
            index = going_on.branches.get(parent_name, {}).get(name, 0)
            self.bus.emit(
                BranchCompleted(fanout_name=parent_name, branch_name=name, branch_index=index, duration_ms=duration)
            )
        going_on.attempts.pop(name, None)
        going_on.running -= 1
        if going_on.running <= 0:
            self._invocations.pop(_invocation_id(callback_context), None)

    async def on_model_error_callback(
        self, *, callback_context: Any = None, llm_request: Any = None, error: Any = None, **_: Any
    ) -> None:
        """A model call failed: whatever is tried next, this attempt did."""
        self.attempt_failed(_agent_name(None, callback_context), error, callback_context=callback_context)

    async def on_tool_error_callback(
        self, *, tool: Any = None, tool_args: Any = None, tool_context: Any = None, error: Any = None, **_: Any
    ) -> None:
        """A tool call failed."""
        self.attempt_failed(_agent_name(None, tool_context) or name_of(tool), error, callback_context=tool_context)

    # ── what code that retries calls ─────────────────────────────────────────────────────────────

    def attempt_failed(
        self, agent_name: str, error: object, *, attempt_index: int | None = None, callback_context: Any = None
    ) -> None:
        """Record a failed attempt; without an index they are counted per agent and invocation."""
        if attempt_index is None:
            counts = self._invocation(callback_context).attempts
            attempt_index = counts.get(agent_name, 0)
            counts[agent_name] = attempt_index + 1
        text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)
        self.bus.emit(AttemptFailed(agent_name=agent_name, attempt_index=attempt_index, error=text[:MAX_TEXT]))

    def _invocation(self, context: Any) -> _Invocation:
        found = self._invocations.setdefault(_invocation_id(context), _Invocation())
        if len(self._invocations) > MAX_INVOCATIONS:  # agents that raised are never reported as ended
            del self._invocations[next(iter(self._invocations))]
        return found

    def _turn(self, going_on: _Invocation, loop_name: str, child: str) -> None:
        loop = going_on.loops.get(loop_name)
        if loop is None:
            loop = going_on.loops[loop_name] = _Loop(child)
        elif loop.first_child == child:
            self._end_turn(loop_name, loop)
            loop.iteration += 1
        else:
            return
        if self._iterations:
            self.bus.emit(IterationStarted(loop_name=loop_name, iteration=loop.iteration))

    def _last_turn(self, going_on: _Invocation, loop_name: str) -> None:
        loop = going_on.loops.pop(loop_name, None)
        if loop is not None:
            self._end_turn(loop_name, loop)

    def _end_turn(self, loop_name: str, loop: _Loop) -> None:
        if self._iterations:
            self.bus.emit(IterationCompleted(loop_name=loop_name, iteration=loop.iteration))

    def _next_attempt(self, going_on: _Invocation, parent_name: str, child: str) -> None:
        """Under an agent that retries or falls back, a child that begins means that the one before it failed."""
        attempt = going_on.attempts.get(parent_name, 0)
        going_on.attempts[parent_name] = attempt + 1
        if attempt:
            failed = f"{child} takes over as attempt {attempt}"
            self.bus.emit(AttemptFailed(agent_name=parent_name, attempt_index=attempt - 1, error=failed))


@contextmanager
def subagent(role: str, prompt: str = "") -> Iterator[list[object]]:
    """Record the run of a subagent on the active bus; put its output into the list that you get."""
    began = time.perf_counter()
    output: list[object] = []
    emit(SubagentStarted(role=role, prompt=prompt[:MAX_TEXT]))
    error: BaseException | None = None
    try:
        yield output
    except BaseException as raised:
        error = raised
        raise
    finally:
        preview = f"{type(error).__name__}: {error}" if error is not None else "".join(map(str, output))
        duration = round((time.perf_counter() - began) * 1_000, 3)
        emit(
            SubagentCompleted(
                role=role, is_error=error is not None, output_preview=preview[:MAX_TEXT], duration_ms=duration
            )
        )


def _agent_name(agent: Any, context: Any) -> str:
    return name_of(agent) if agent is not None else str(getattr(context, "agent_name", "") or "")


def _type_of(agent: Any) -> str:
    return type(agent).__name__ if agent is not None else ""


def _is_a(agent: Any, class_name: str) -> bool:
    return agent is not None and any(each.__name__ == class_name for each in type(agent).__mro__)


def _is_retry(agent: Any) -> bool:
    return agent is not None and any(
        "Retry" in each.__name__ or "Fallback" in each.__name__ for each in type(agent).__mro__
    )


def _invocation_id(context: Any) -> str:
    return str(getattr(context, "invocation_id", "") or "")


def _branch_of(context: Any) -> str:
    inner = getattr(context, "_invocation_context", None)
    return str(getattr(inner, "branch", "") or getattr(context, "branch", "") or "")
