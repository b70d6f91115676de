"""The bus: order, errors, the ambient bus, callbacks for agents."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tape import EventBus, EventDispatcher, TextChunk, ToolCallStart, active_bus, emit, use_bus


def test_handlers_of_the_kind_come_first_each_in_its_order() -> None:
    seen: list[str] = []
    bus = EventBus()
    bus.subscribe(lambda event: seen.append("all"))
    bus.on("text", lambda event: seen.append("text 1")).on("text", lambda event: seen.append("text 2"))
    bus.on("other", lambda event: seen.append("other"))
    bus.emit(TextChunk(text="a"))
    bus.emit({"kind": "other"})
    assert seen == ["text 1", "text 2", "all", "other", "all"]
    assert bus.subscriber_count == 4


def test_a_handler_that_raises_does_not_affect_others_and_its_error_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: Any) -> None:
        raise ValueError("no")

    seen: list[Any] = []
    bus = EventBus().subscribe(broken).subscribe(seen.append)
    event = TextChunk(text="a")
    bus.emit(event)
    bus.emit(event)
    assert seen == [event, event]
    assert [(kept, str(error)) for kept, error in bus.errors] == [(event, "no")] * 2
    assert len(caplog.records) == 1


def test_a_bound_method_can_be_taken_off() -> None:
    bus = EventBus()
    tape = bus.tape()
    bus.emit(TextChunk(text="a"))
    bus.off(tape.record)
    bus.emit(TextChunk(text="b"))
    assert tape.head == 1
    assert bus.subscriber_count == 0


def test_the_buffer_keeps_the_latest() -> None:
    bus = EventBus(max_buffer=2)
    for number in range(3):
        bus.emit(number)
    assert bus.buffer == [1, 2]
    assert EventBus().buffer == []


async def test_the_active_bus_belongs_to_the_task() -> None:
    bus = EventBus(max_buffer=1)
    emit("no active bus")
    with use_bus(bus):
        assert active_bus() is bus

        async def inner() -> None:
            emit("heard")

        await asyncio.gather(inner())
    assert active_bus() is None
    assert bus.buffer == ["heard"]


def test_tool_callbacks_emit_calls_results_and_errors() -> None:
    bus = EventBus(max_buffer=10)
    after = bus.after_tool_hook()
    tool, context = SimpleNamespace(name="bash"), object()
    after._before_hook(tool, {"cmd": "ls"}, context)  # type: ignore[attr-defined]
    after(tool, {"cmd": "ls"}, context, {"error": "no such file"})
    after(tool, {}, context, "Error: again")
    bus.before_tool_hook()(tool, {"cmd": "pwd"})
    start, end, error, _, text_error, plain = bus.buffer
    assert start == plain.__class__(tool_name="bash", args={"cmd": "ls"})
    assert end.duration_ms >= 0
    assert error.error == "no such file"
    assert text_error.error == "Error: again"
    assert plain.args == {"cmd": "pwd"}


def test_answers_of_a_model_become_text_and_the_end_of_a_turn() -> None:
    bus = EventBus(max_buffer=10)
    parts = [SimpleNamespace(text="hel"), SimpleNamespace(text="lo")]
    bus.after_model_hook()(None, SimpleNamespace(content=SimpleNamespace(parts=parts)))
    assert [event.kind for event in bus.buffer] == ["text", "text", "turn_complete"]
    assert bus.buffer[-1].response == "hello"
    call = SimpleNamespace(text="let me see", function_call=object())
    bus.after_model_hook()(None, SimpleNamespace(content=SimpleNamespace(parts=[call])))
    assert bus.buffer[-1].kind == "text"


def test_a_dispatcher_translates_a_frameworks_events() -> None:
    call = SimpleNamespace(function_call=SimpleNamespace(name="bash", args={"cmd": "ls"}))
    answer = SimpleNamespace(function_response=SimpleNamespace(name="bash", response={"out": "a"}))
    event = SimpleNamespace(content=SimpleNamespace(parts=[SimpleNamespace(text="hi"), call, answer]))
    seen: list[Any] = []
    found = EventDispatcher().subscribe(seen.append).translate_and_emit(event)
    assert found == seen
    assert found[:2] == [TextChunk(text="hi"), ToolCallStart(tool_name="bash", args={"cmd": "ls"})]
    assert found[2].kind == "tool_call_end"
