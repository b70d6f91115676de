"""The reactor: order, preemption, errors, cursors, windows."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tape import Change, EventBus, FileCursor, Reactor, ReactorPlugin, SessionTape, Signal, TokenRegistry
from tape.errors import InvalidInput, InvalidRule, TapeFileUnusable, UnknownName


class World:
    """A bus, a tape that records it, and signals on that bus."""

    def __init__(self) -> None:
        self.bus = EventBus()
        self.tape = self.bus.tape()
        self.seen: list[Any] = []

    def signal(self, name: str, initial: Any = None) -> Signal:
        return Signal(name, initial, bus=self.bus)

    def reactor(self, **options: Any) -> Reactor:
        return Reactor(self.tape, bus=self.bus, **options)

    def note(self, text: Any) -> Any:
        return lambda change: self.seen.append((text, change.value))

    async def until_seen(self, count: int) -> None:
        while len(self.seen) < count:
            await asyncio.sleep(0)


@pytest.fixture
def world() -> World:
    return World()


async def test_handlers_run_when_their_signal_changes(world: World) -> None:
    a, b = world.signal("a"), world.signal("b")
    reactor = world.reactor()

    async def slowly(change: Change) -> None:
        await asyncio.sleep(0)
        world.seen.append((change.signal_name, change.value, change.previous, change.seq))

    reactor.when(a.changed, slowly)
    reactor.when(b, lambda: world.seen.append("b"))
    running = reactor.start(budget=3)
    a.set(1)
    b.set(1)
    a.set(2)
    assert await running == 3
    assert world.seen == [("a", 1, None, 0), "b", ("a", 2, 1, 2)]


async def test_the_higher_number_is_more_urgent_and_equal_ones_keep_their_order(world: World) -> None:
    a = world.signal("a")
    reactor = world.reactor()
    for name, priority in (("low", 1), ("mid 1", 5), ("high", 10), ("mid 2", 5)):
        reactor.when(a.changed, world.note(name), priority=priority)
    a.set(1)
    await reactor.run(budget=4)
    assert [name for name, _ in world.seen] == ["high", "mid 1", "mid 2", "low"]


async def test_a_preemptive_rule_interrupts_and_says_where_to_go_on(world: World) -> None:
    slow, urgent = world.signal("slow"), world.signal("urgent")
    reactor = world.reactor()
    tokens: list[Any] = []

    async def forever(change: Change) -> None:
        tokens.append(change.token)
        world.seen.append("began")
        await asyncio.Event().wait()

    reactor.when(slow.changed, forever, name="slow", priority=1, agent_name="writer")
    reactor.when(urgent.changed, world.note("urgent"), name="urgent", priority=100, preemptive=True)
    running = reactor.start(budget=2)
    slow.set(1)
    await world.until_seen(1)
    urgent.set(1)
    assert await running == 2
    assert world.seen == ["began", ("urgent", 1)]
    interrupted = world.tape.filter("interrupted")[0]
    assert interrupted["agent_name"] == "writer"
    assert interrupted["reason"] == "preempted by urgent (priority 100)"
    assert interrupted["resume_cursor"] == interrupted["seq"]
    assert tokens[0].is_cancelled
    assert tokens[0].resume_cursor == interrupted["seq"]
    assert reactor.tokens.get("writer") is tokens[0]


async def test_preemption_loses_no_handler_even_if_the_victim_had_not_begun(world: World) -> None:
    slow, urgent = world.signal("slow"), world.signal("urgent")
    reactor = world.reactor()
    reactor.when(slow.changed, world.note("slow"), priority=1)
    reactor.when(urgent.changed, world.note("urgent"), priority=100, preemptive=True)
    running = reactor.start(budget=2)
    while not world.tape._waiters:
        await asyncio.sleep(0)
    slow.set(1)
    urgent.set(1)
    assert await asyncio.wait_for(running, 120) == 2
    assert sorted(world.seen) == [("slow", 1), ("urgent", 1)]


@pytest.mark.parametrize("steps", range(8))
async def test_whenever_the_urgent_change_comes_every_handler_runs(world: World, steps: int) -> None:
    slow, urgent = world.signal("slow"), world.signal("urgent")
    reactor = world.reactor()

    async def handle(change: Change) -> None:
        world.seen.append(change.signal_name)
        await asyncio.sleep(0)

    reactor.when(slow.changed, handle, priority=1)
    reactor.when(urgent.changed, handle, priority=2, preemptive=True)
    running = reactor.start(budget=2)
    slow.set(1)
    for _ in range(steps):
        await asyncio.sleep(0)
    urgent.set(1)
    await asyncio.wait_for(running, 120)
    assert set(world.seen) == {"slow", "urgent"}


async def test_equal_priority_never_preempts_and_a_deaf_handler_is_waited_for(world: World) -> None:
    a, b = world.signal("a"), world.signal("b")
    reactor = world.reactor()
    go = asyncio.Event()

    async def deaf(change: Change) -> None:
        world.seen.append("began")
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                world.seen.append("ignored")
                go.set()
        world.seen.append("ended")

    reactor.when(a.changed, deaf, priority=5)
    reactor.when(b.is_(1), world.note("equal"), priority=5, preemptive=True)
    reactor.when(b.is_(2), world.note("urgent"), priority=6, preemptive=True)
    running = reactor.start(budget=3)
    a.set(1)
    await world.until_seen(1)
    b.set(1)
    b.set(2)
    await running
    assert world.seen == ["began", "ignored", "ended", ("urgent", 2), ("equal", 1)]


async def test_a_handler_that_fails_is_recorded_and_the_reactor_goes_on(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    a = world.signal("a")
    reactor = world.reactor()
    calls: list[int] = []

    def broken(change: Change) -> None:
        calls.append(change.value)
        raise TypeError("no")

    reactor.when(a.changed, broken, name="broken")
    a.set(1)
    a.set(2)
    assert await reactor.run(budget=2) == 2
    assert calls == [1, 2]
    failed = world.tape.filter("attempt_failed")
    assert [(entry["agent_name"], entry["error"]) for entry in failed] == [("broken", "TypeError: no")] * 2
    assert [error.rule for error in reactor.errors] == ["broken", "broken"]
    assert "The handler of rule broken failed" in caplog.text


async def test_a_predicate_that_fails_disables_its_rule_alone(world: World) -> None:
    a = world.signal("a")
    reactor = world.reactor()
    reactor.when(a.changed.where(lambda value: value > 1), world.note("where"), name="where")
    reactor.when(a.changed, world.note("plain"))
    a.set("text")
    a.set(5)
    await reactor.run(budget=2)
    assert world.seen == [("plain", "text"), ("plain", 5)]
    assert "TypeError" in reactor.disabled["where"]
    assert "the rule is disabled" in world.tape.filter("error")[0]["error"]
    reactor.enable("where")
    a.set(6)
    await reactor.run(from_seq=world.tape.head - 1, budget=2)
    assert ("where", 6) in world.seen
    with pytest.raises(UnknownName):
        reactor.enable("where")


async def test_stop_acts_at_once_and_it_can_run_again(world: World) -> None:
    a = world.signal("a")
    reactor = world.reactor()

    async def forever(change: Change) -> None:
        world.seen.append(change.value)
        await asyncio.Event().wait()

    reactor.when(a.changed, forever)
    running = reactor.start()
    while not world.tape._waiters:
        await asyncio.sleep(0)
    reactor.stop()
    assert await asyncio.wait_for(running, 120) == 0
    a.set(1)
    running = reactor.start()
    await world.until_seen(1)
    with pytest.raises(InvalidInput, match="already runs"):
        await reactor.run()
    await asyncio.to_thread(reactor.stop)
    assert await asyncio.wait_for(running, 120) == 0
    reactor.stop()


async def test_a_restart_goes_on_after_what_has_ended(world: World, tmp_path: Path) -> None:
    a = world.signal("a")
    for value in (1, 2, 3):
        a.set(value)

    async def once(budget: int) -> None:
        reactor = world.reactor(cursor_path=tmp_path / "cursor.json")
        reactor.when(a.changed, world.note("a"))
        await reactor.run(budget=budget)

    await once(2)
    await once(1)
    a.set(4)
    await once(1)
    assert [value for _, value in world.seen] == [1, 2, 3, 4]


async def test_a_handler_that_was_stopped_runs_again_after_a_restart(world: World, tmp_path: Path) -> None:
    a = world.signal("a")
    cursor = FileCursor(tmp_path / "cursor.json")
    reactor = world.reactor(cursor_store=cursor)

    async def handle(change: Change) -> None:
        world.seen.append(change.value)
        if len(world.seen) == 2:
            await asyncio.Event().wait()

    reactor.when(a.changed, handle)
    for value in (1, 2, 3):
        a.set(value)
    running = reactor.start()
    await world.until_seen(2)
    reactor.stop()
    await running
    assert cursor.load() == 1
    await reactor.run(budget=2)
    assert world.seen == [1, 2, 2, 3]


async def test_both_sides_of_and_are_known_after_a_restart(world: World) -> None:
    a, b = world.signal("a"), world.signal("b")
    a.set(1)
    start = world.tape.head
    reactor = world.reactor()
    reactor.when(a.is_(1) & b.is_(1), world.note("both"))
    b.set(1)
    await reactor.run(from_seq=start, budget=1)
    assert world.seen == [("both", 1)]


async def test_a_trailing_debounce_acts_after_the_last_match(world: World) -> None:
    a = world.signal("a")
    reactor = world.reactor()
    reactor.when(a.changed.debounce(20, edge="trailing"), world.note("a"))
    for value in (1, 2, 3):
        a.set(value)
    assert await reactor.run(budget=1) == 1
    assert world.seen == [("a", 3)]


async def test_without_a_bus_its_events_go_on_the_tape() -> None:
    tape = SessionTape()
    reactor = Reactor(tape, tokens=TokenRegistry())
    reactor.when(Signal("a").changed, lambda: 1 / 0)
    tape.record({"kind": "signal_changed", "name": "a", "value": 1})
    await reactor.run(budget=1)
    assert tape.filter("attempt_failed")


async def test_a_cursor_that_cannot_be_kept_is_counted_not_fatal(world: World, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    a = world.signal("a")
    reactor = world.reactor(cursor_path=tmp_path / "file")
    (tmp_path / "file").unlink()
    (tmp_path / "file").mkdir()
    reactor._store.load = lambda: None  # type: ignore[union-attr,method-assign]
    reactor.when(a.changed, world.note("a"))
    a.set(1)
    assert await reactor.run(budget=1) == 1
    assert reactor.cursor_errors > 0


async def test_the_plugin_starts_and_stops_it(world: World) -> None:
    a = world.signal("a")
    reactor = world.reactor()
    reactor.when(a.changed, world.note("a"))
    plugin = ReactorPlugin(reactor)
    await plugin.on_session_start()
    a.set(1)
    await world.until_seen(1)
    assert await plugin.on_session_end() == 1
    assert await plugin.stop() == 0


def test_invalid_arguments_raise(world: World, tmp_path: Path) -> None:
    reactor = world.reactor()
    with pytest.raises(InvalidRule, match="neither a predicate nor a signal"):
        reactor.when("a", print)  # type: ignore[arg-type]
    with pytest.raises(InvalidRule, match="cannot be called"):
        reactor.when(Signal("a").changed, None)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="either"):
        world.reactor(cursor_path=tmp_path / "c", cursor_store=FileCursor(tmp_path / "c"))
    (tmp_path / "c").write_text("[]")
    with pytest.raises(TapeFileUnusable, match="does not hold a cursor"):
        FileCursor(tmp_path / "c").load()
    (tmp_path / "c").write_text('{"cursor": -1}')
    with pytest.raises(TapeFileUnusable, match="-1"):
        FileCursor(tmp_path / "c").load()
    assert FileCursor(tmp_path / "none").load() is None
