"""The event bus: calls handlers in this process with each event; it stores nothing."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tape.session.backends.protocol import TapeBackend
from tape.session.events import ErrorOccurred, HarnessEvent, TextChunk, ToolCallEnd, ToolCallStart, TurnComplete
from tape.session.tape import SessionTape

Handler = Callable[[Any], object]
MAX_RESULT = 500
MAX_ERRORS = 100

_ambient: ContextVar[EventBus | None] = ContextVar("tape_bus", default=None)


class EventBus:
    """Calls handlers in the order in which they were added, those for the event's kind first.

    A handler that raises does not affect the others: its error is kept in `errors` and logged once per handler.
    `max_buffer` keeps the latest events in `buffer` (0: none).
    """

    def __init__(self, *, max_buffer: int = 0) -> None:
        self.errors: deque[tuple[Any, Exception]] = deque(maxlen=MAX_ERRORS)
        self._of_kind: dict[str, tuple[Handler, ...]] = {}
        self._of_all: tuple[Handler, ...] = ()
        self._buffer: deque[Any] = deque(maxlen=max_buffer) if max_buffer > 0 else deque(maxlen=0)
        self._logged: list[Handler] = []

    def on(self, kind: str, handler: Handler) -> EventBus:
        """Call the handler with events of a kind."""
        self._of_kind[kind] = (*self._of_kind.get(kind, ()), handler)
        return self

    def subscribe(self, handler: Handler) -> EventBus:
        """Call the handler with all events."""
        self._of_all = (*self._of_all, handler)
        return self

    def off(self, handler: Handler) -> EventBus:
        """Remove a handler."""
        self._of_all = tuple(each for each in self._of_all if each != handler)
        for kind, handlers in list(self._of_kind.items()):
            self._of_kind[kind] = tuple(each for each in handlers if each != handler)
        return self

    def emit(self, event: Any) -> None:
        """Call the handlers with an event."""
        self._buffer.append(event)
        kind = event.get("kind", "") if isinstance(event, dict) else getattr(event, "kind", "")
        for handler in (*self._of_kind.get(kind, ()), *self._of_all):
            try:
                handler(event)
            except Exception as error:
                self._failed(handler, event, error)

    def tape(self, *, max_events: int = 0, backend: TapeBackend | None = None) -> SessionTape:
        """A tape that records everything emitted from now on."""
        tape = SessionTape(max_events=max_events, backend=backend)
        self.subscribe(tape.record)
        return tape

    @property
    def subscriber_count(self) -> int:
        """How many handlers there are."""
        return len(self._of_all) + sum(map(len, self._of_kind.values()))

    @property
    def buffer(self) -> list[Any]:
        """The latest events."""
        return list(self._buffer)

    # ── callbacks for agents ─────────────────────────────────────────────────────────────────────

    def before_tool_hook(self) -> Callable[..., None]:
        """A before-tool callback `(tool, args, context)` that emits ToolCallStart."""

        def before(tool: Any, args: dict[str, Any] | None = None, tool_context: Any = None, **_: Any) -> None:
            self.emit(ToolCallStart(tool_name=name_of(tool), args=dict(args or {})))

        return before

    def after_tool_hook(self) -> Callable[..., None]:
        """An after-tool callback that emits ToolCallEnd, and ErrorOccurred for a result that is an error.

        For the duration, use its attribute `_before_hook` as the before-tool callback.
        """
        began: dict[tuple[str, Any], float] = {}
        before_emit = self.before_tool_hook()

        def before(tool: Any, args: dict[str, Any] | None = None, tool_context: Any = None, **_: Any) -> None:
            began[name_of(tool), id(tool_context)] = time.perf_counter()
            before_emit(tool, args, tool_context)

        def after(tool: Any, args: Any = None, tool_context: Any = None, result: Any = None, **more: Any) -> None:
            result = more.get("tool_response", result)
            name = name_of(tool)
            started = began.pop((name, id(tool_context)), None)
            duration = (time.perf_counter() - started) * 1_000 if started is not None else 0.0
            self.emit(ToolCallEnd(tool_name=name, result=str(result)[:MAX_RESULT], duration_ms=round(duration, 3)))
            if isinstance(result, dict) and "error" in result:
                self.emit(ErrorOccurred(tool_name=name, error=str(result["error"])[:MAX_RESULT]))
            elif isinstance(result, str) and result.startswith("Error:"):
                self.emit(ErrorOccurred(tool_name=name, error=result[:MAX_RESULT]))

        after._before_hook = before  # type: ignore[attr-defined]
        return after

    def after_model_hook(self) -> Callable[..., None]:
        """An after-model callback that emits the answer's text as TextChunk, and TurnComplete when it calls no tool."""

        def after(callback_context: Any = None, llm_response: Any = None, **_: Any) -> None:
            parts = getattr(getattr(llm_response, "content", None), "parts", None) or ()
            texts = [part.text for part in parts if getattr(part, "text", None)]
            for text in texts:
                self.emit(TextChunk(text=text))
            if texts and not any(getattr(part, "function_call", None) for part in parts):
                self.emit(TurnComplete(response="".join(texts)))

        return after

    def _failed(self, handler: Handler, event: Any, error: Exception) -> None:
        self.errors.append((event, error))
        if handler not in self._logged:
            self._logged.append(handler)
            import logging

            logging.getLogger("tape.session").error("A handler of the bus failed: %r", handler, exc_info=error)


class EventDispatcher:
    """Turns the events of an agent framework into ours and emits them on a bus."""

    def __init__(self, bus: EventBus | None = None) -> None:
        self.bus = bus if bus is not None else EventBus()

    def on(self, kind: str, handler: Handler) -> EventDispatcher:
        """Call the handler with events of a kind."""
        self.bus.on(kind, handler)
        return self

    def subscribe(self, handler: Handler) -> EventDispatcher:
        """Call the handler with all events."""
        self.bus.subscribe(handler)
        return self

    def emit(self, event: Any) -> None:
        """Call the handlers with an event."""
        self.bus.emit(event)

    def translate(self, adk_event: Any) -> list[HarnessEvent]:
        """The events of a framework's event: text, tool calls and tool results."""
        found: list[HarnessEvent] = []
        for part in getattr(getattr(adk_event, "content", None), "parts", None) or ():
            if text := getattr(part, "text", None):
                found.append(TextChunk(text=text))
            if call := getattr(part, "function_call", None):
                found.append(ToolCallStart(tool_name=call.name, args=dict(getattr(call, "args", None) or {})))
            if answer := getattr(part, "function_response", None):
                found.append(ToolCallEnd(tool_name=answer.name, result=str(answer.response)[:MAX_RESULT]))
        return found

    def translate_and_emit(self, adk_event: Any) -> list[HarnessEvent]:
        """Translate an event and emit the results."""
        found = self.translate(adk_event)
        for event in found:
            self.bus.emit(event)
        return found


def name_of(tool: Any) -> str:
    """The name of a tool, a function or an agent."""
    return str(getattr(tool, "name", None) or getattr(tool, "__name__", None) or tool)


def active_bus() -> EventBus | None:
    """The bus of the code that is running, if there is one."""
    return _ambient.get()


def emit(event: Any) -> None:
    """Emit on the active bus; without one, do nothing."""
    bus = _ambient.get()
    if bus is not None:
        bus.emit(event)


def set_active_bus(bus: EventBus | None) -> None:
    """Make a bus the active one of this task and those it starts."""
    _ambient.set(bus)


@contextmanager
def use_bus(bus: EventBus | None) -> Iterator[EventBus | None]:
    """Make a bus the active one inside a `with` block."""
    token = _ambient.set(bus)
    try:
        yield bus
    finally:
        _ambient.reset(token)
