"""Bus, store, plugins and `H` as programs of the durable event log know them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tape.compat.session.tapes import SessionTape
from tape.session import bus as buses
from tape.session import harness, lifecycle, store
from tape.session.backends.protocol import TapeBackend
from tape.session.effects import EffectCache
from tape.session.forks import ForkManager


class EventBus(buses.EventBus):
    """A bus whose tapes are those of this package, and whose after-tool callback returns the response."""

    def tape(self, *, max_events: int = 0, backend: TapeBackend | None = None) -> SessionTape:
        """A tape that records everything emitted from now on."""
        tape = SessionTape(max_events=max_events, backend=backend)
        self.subscribe(tape.record)
        return tape

    def after_tool_hook(self) -> Callable[..., Any]:
        """An after-tool callback that emits ToolCallEnd and returns the response that it got.

        google-adk takes a response as the last word: callbacks after this one are not called. `tape.session.EventBus`
        returns None for that reason.
        """
        emit = super().after_tool_hook()

        def after(tool: Any, args: Any = None, tool_context: Any = None, result: Any = None, **more: Any) -> Any:
            emit(tool, args, tool_context, result, **more)
            return more.get("tool_response", result)

        after._before_hook = emit._before_hook  # type: ignore[attr-defined]
        return after


class EventDispatcher(buses.EventDispatcher):
    """Turns the events of an agent framework into ours and emits them on a bus."""

    def __init__(self, bus: buses.EventBus | None = None) -> None:
        super().__init__(bus if bus is not None else EventBus())


class WorkflowLifecyclePlugin(lifecycle.WorkflowLifecyclePlugin):
    """Emits one IterationCompleted for a whole loop, for its last turn, and no AttemptFailed."""

    def __init__(
        self,
        bus: buses.EventBus | None = None,
        *,
        tape: SessionTape | None = None,
        emit_step_events: bool = True,
        emit_iteration_events: bool = True,
        emit_branch_events: bool = True,
        name: str = "adkf_workflow_lifecycle",
    ) -> None:
        super().__init__(
            bus,
            tape=tape,
            emit_step_events=emit_step_events,
            emit_iteration_events=emit_iteration_events,
            emit_branch_events=emit_branch_events,
            name=name,
        )
        self._is_last_turn = False

    def attempt_failed(
        self, agent_name: str, error: object, *, attempt_index: int | None = None, callback_context: Any = None
    ) -> None:
        """Nothing: programs of that log count on the events of steps, turns and branches alone."""

    def _next_attempt(self, going_on: Any, parent_name: str, child: str) -> None:
        """As above."""

    def _last_turn(self, going_on: Any, loop_name: str) -> None:
        self._is_last_turn = True
        try:
            super()._last_turn(going_on, loop_name)
        finally:
            self._is_last_turn = False

    def _end_turn(self, loop_name: str, loop: Any) -> None:
        if self._is_last_turn:
            super()._end_turn(loop_name, loop)


class SessionStore(store.SessionStore):
    """A tape, branches and cached effects, kept together."""

    def __init__(
        self,
        tape: SessionTape | None = None,
        forks: ForkManager | None = None,
        effect_cache: EffectCache | None = None,
    ) -> None:
        super().__init__(tape if tape is not None else SessionTape(), forks, effect_cache)


class SessionPlugin(store.SessionPlugin):
    """Forks the state after each agent, as `<prefix>:<agent>`."""

    def __init__(
        self,
        store: SessionStore | None = None,
        *,
        auto_fork: bool = True,
        fork_prefix: str = "auto",
        name: str = "adkf_session_plugin",
    ) -> None:
        super().__init__(
            store if store is not None else SessionStore(), auto_fork=auto_fork, fork_prefix=fork_prefix, name=name
        )


class H(harness.H):
    """Makes tapes, buses, stores and tokens."""

    @staticmethod
    def tape(max_events: int = 0, *, backend: TapeBackend | None = None) -> SessionTape:
        """A tape."""
        return SessionTape(max_events=max_events, backend=backend)

    @staticmethod
    def event_bus(max_buffer: int = 0) -> EventBus:
        """A bus."""
        return EventBus(max_buffer=max_buffer)

    @staticmethod
    def dispatcher(bus: buses.EventBus | None = None) -> EventDispatcher:
        """A dispatcher on a bus."""
        return EventDispatcher(bus)

    @staticmethod
    def session_store(
        max_events: int = 0, max_branches: int = 20, *, backend: TapeBackend | None = None
    ) -> SessionStore:
        """A tape with branches and cached effects."""
        return SessionStore(H.tape(max_events, backend=backend), H.forks(max_branches))

    @staticmethod
    def session_plugin(store: Any = None, **options: Any) -> SessionPlugin:
        """A plugin that forks the state after each agent."""
        return SessionPlugin(store, **options)
