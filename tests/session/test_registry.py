"""`R`: signals and rules by name."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tape import EventBus, R, SessionTape, SignalRegistry
from tape.errors import InvalidRule
from tape.session.registry import rule_of


@pytest.fixture(autouse=True)
def scope() -> Iterator[SignalRegistry]:
    with R.scope() as registry:
        yield registry


def test_a_rule_may_name_a_signal_before_it_has_a_value() -> None:
    R.rising("temp")
    assert R.signal("temp", 72).value == 72
    assert R.signal("temp", 99).value == 72
    assert R.get("temp") is R.signal("temp")
    assert R.names() == ("temp",)


def test_an_unknown_signal_is_a_key_error_that_says_how_to_make_it() -> None:
    with pytest.raises(KeyError, match=r"R\.signal\('x'"):
        R.get("x")


def test_attaching_a_bus_reaches_signals_that_are_there_and_that_come() -> None:
    bus = EventBus(max_buffer=10)
    before = R.signal("before")
    R.attach(bus)
    before.set(1)
    R.signal("after").set(1)
    R.computed("sum", lambda: R.get("before").get() + R.get("after").get())
    R.get("after").set(2)
    assert [event.name for event in bus.buffer] == ["before", "after", "after", "sum"]


def test_any_and_all_need_something() -> None:
    for combine in (R.any, R.all):
        with pytest.raises(ValueError, match="at least one"):
            combine()
    assert R.all(R.is_("a", 1), R.changed("b")).deps == {"a", "b"}
    assert R.any(R.falling("a")).deps == {"a"}


async def test_compile_collects_rules_from_builders_their_children_and_the_registry() -> None:
    seen: list[str] = []
    bus = EventBus()
    tape = bus.tape()
    leaf = SimpleNamespace(_reactor_rules=[rule_of(R.signal("a"), lambda: seen.append("leaf"), name="leaf")])
    inner = SimpleNamespace(_steps=[leaf], _reactor_rules=[])
    root = SimpleNamespace(
        _lists={"sub_agents": [inner, leaf]},
        _reactor_rules=[rule_of(R.changed("a"), lambda: seen.append("root"), priority=5)],
    )
    R.rule(R.changed("a") | R.changed("b"), lambda: seen.append("registry"))
    reactor = R.compile(root, tape=tape, bus=bus)
    assert [rule.name for rule in reactor.rules] == ["on_a", "leaf", "on_a+b"]
    R.signal("a").set(1)
    await reactor.run(budget=3)
    assert seen == ["root", "leaf", "registry"]


def test_a_rule_without_a_handler_raises_at_compile() -> None:
    spec = R.rule(R.changed("a"), name="lonely")
    with pytest.raises(InvalidRule, match="'lonely' has no handler"):
        R.compile(tape=SessionTape())
    assert spec.with_handler(print).handler is print
    with pytest.raises(TypeError, match="SignalPredicate or Signal"):
        rule_of("a")


def test_scopes_do_not_leak() -> None:
    R.signal("outer")
    with R.scope():
        assert R.names() == ()
        R.signal("inner")
    assert R.names() == ("outer",)
    own = SignalRegistry()
    before: Any = R.registry()
    R.set_registry(own)
    R.signal("own")
    R.set_registry(before)
    assert own.has("own")
    R.clear()
    assert R.names() == ()


def test_a_scope_is_a_registry_also_without_a_block() -> None:
    before = R.registry()
    scope = R.scope()
    assert scope.signal("heat", 3).value == 3
    assert R.registry() is before
    with scope as used:
        assert R.registry() is used is scope
    assert R.registry() is before
