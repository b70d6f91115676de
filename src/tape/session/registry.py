"""`R`: signals and rules by name, put together where agents are declared and compiled into a reactor."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_, or_
from typing import Any

from tape.errors import InvalidRule, UnknownName
from tape.session.cursors import CursorStore
from tape.session.predicates import SignalPredicate
from tape.session.reactor import Handler, Reactor
from tape.session.signals import Signal, computed
from tape.session.tape import SessionTape

_LISTS = ("steps", "branches", "sub_agents", "agents", "children")
_ATTRIBUTES = ("_children", "_agents", "_steps", "_branches")


class _Unset:
    def __repr__(self) -> str:
        return "…"


_UNSET: Any = _Unset()


@dataclass(frozen=True, slots=True)
class RuleSpec:
    """A rule that is not part of a reactor yet; its handler may come later."""

    predicate: SignalPredicate
    handler: Handler | None = None
    name: str = ""
    priority: int = 0
    preemptive: bool = False

    def with_handler(self, handler: Handler) -> RuleSpec:
        """The same rule with a handler."""
        return replace(self, handler=handler)


class SignalRegistry:
    """Signals and rules by name."""

    signal_class: type[Signal] = Signal

    def __init__(self, *, bus: Any = None) -> None:
        self.bus = bus
        self._signals: dict[str, Signal] = {}
        self._without_value: set[str] = set()
        self._rules: list[RuleSpec] = []

    def attach(self, bus: Any) -> SignalRegistry:
        """Let all signals, also those to come, emit on this bus."""
        self.bus = bus
        for signal in self._signals.values():
            signal.attach(bus)
        return self

    def signal(self, name: str, initial: Any = _UNSET) -> Signal:
        """The signal of that name, made if need be. The first value it is given here is its initial one."""
        signal = self._signals.get(name)
        if signal is None:
            signal = self._signals[name] = self.signal_class(name, None if initial is _UNSET else initial, bus=self.bus)
            if initial is _UNSET:
                self._without_value.add(name)
        elif initial is not _UNSET and name in self._without_value:
            self._without_value.discard(name)
            if signal.version == 0:  # a rule that was declared first named it
                signal._value = initial
        return signal

    def add(self, signal: Signal) -> Signal:
        """Make a signal known by its name."""
        self._signals[signal.name] = signal
        return signal

    def get(self, name: str) -> Signal:
        """The signal of that name; UnknownName if there is none."""
        if name not in self._signals:
            raise UnknownName(f"There is no signal {name!r}; make it with R.signal({name!r}, …). Known: {self.names()}")
        return self._signals[name]

    def has(self, name: str) -> bool:
        """Whether there is one."""
        return name in self._signals

    def names(self) -> tuple[str, ...]:
        """All names in the order in which they came."""
        return tuple(self._signals)

    def rule(
        self,
        predicate: SignalPredicate,
        handler: Handler | None = None,
        *,
        name: str = "",
        priority: int = 0,
        preemptive: bool = False,
    ) -> RuleSpec:
        """Declare a rule."""
        spec = RuleSpec(predicate, handler, name, priority, preemptive)
        self._rules.append(spec)
        return spec

    def rules(self) -> tuple[RuleSpec, ...]:
        """The rules that were declared here."""
        return tuple(self._rules)

    def clear(self) -> None:
        """Forget signals and rules; the bus stays."""
        self._signals.clear()
        self._without_value.clear()
        self._rules.clear()


class RegistryScope(SignalRegistry):
    """A registry of its own, and the one that `R` uses inside a `with` block."""

    def __init__(self, user: type[R], *, bus: Any = None) -> None:
        super().__init__(bus=bus)
        self.signal_class = user.registry().signal_class
        self._user = user
        self._before: list[SignalRegistry] = []

    def __enter__(self) -> SignalRegistry:
        self._before.append(self._user.registry())
        self._user.set_registry(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._user.set_registry(self._before.pop())


class R:
    """Signals and rules of the registry in use, without passing it around."""

    _current = SignalRegistry()

    @classmethod
    def registry(cls) -> SignalRegistry:
        """The registry in use."""
        return cls._current

    @classmethod
    def set_registry(cls, registry: SignalRegistry) -> None:
        """Use another registry."""
        cls._current = registry

    @classmethod
    def scope(cls, *, bus: Any = None) -> RegistryScope:
        """An empty registry; inside `with R.scope():` it is the one in use."""
        return RegistryScope(cls, bus=bus)

    @classmethod
    def clear(cls) -> None:
        """Forget signals and rules."""
        cls._current.clear()

    @classmethod
    def attach(cls, bus: Any) -> SignalRegistry:
        """Let all signals emit on this bus."""
        return cls._current.attach(bus)

    @classmethod
    def signal(cls, name: str, initial: Any = _UNSET) -> Signal:
        """The signal of that name, made if need be."""
        return cls._current.signal(name, initial)

    @classmethod
    def get(cls, name: str) -> Signal:
        """The signal of that name; UnknownName, a KeyError, if there is none."""
        return cls._current.get(name)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of all signals."""
        return cls._current.names()

    @classmethod
    def changed(cls, name: str) -> SignalPredicate:
        """True when the signal has a new value."""
        return cls.signal(name).changed

    @classmethod
    def rising(cls, name: str) -> SignalPredicate:
        """True when its new value is greater."""
        return cls.signal(name).rising

    @classmethod
    def falling(cls, name: str) -> SignalPredicate:
        """True when its new value is less."""
        return cls.signal(name).falling

    @classmethod
    def is_(cls, name: str, expected: Any) -> SignalPredicate:
        """True when its new value equals the expected one."""
        return cls.signal(name).is_(expected)

    @classmethod
    def any(cls, *predicates: SignalPredicate) -> SignalPredicate:
        """True when one of them is."""
        return reduce(or_, _some("any", predicates))

    @classmethod
    def all(cls, *predicates: SignalPredicate) -> SignalPredicate:
        """True when all of them are."""
        return reduce(and_, _some("all", predicates))

    @classmethod
    def computed(cls, name: str, fn: Callable[[], Any]) -> Signal:
        """A signal that is computed from others."""
        registry = cls._current
        return registry.add(computed(name, fn, bus=registry.bus, signal_class=registry.signal_class))

    @classmethod
    def rule(
        cls,
        predicate: SignalPredicate,
        handler: Handler | None = None,
        *,
        name: str = "",
        priority: int = 0,
        preemptive: bool = False,
    ) -> RuleSpec:
        """Declare a rule."""
        return cls._current.rule(predicate, handler, name=name, priority=priority, preemptive=preemptive)

    @classmethod
    def compile(
        cls,
        *builders: Any,
        tape: SessionTape,
        bus: Any = None,
        registry: SignalRegistry | None = None,
        cursor_path: str | os.PathLike[str] | None = None,
        cursor_store: CursorStore | None = None,
    ) -> Reactor:
        """A reactor with the `_reactor_rules` of the builders and their children, then those of the registry."""
        registry = registry if registry is not None else cls._current
        if bus is not None:
            registry.attach(bus)
        reactor = Reactor(tape, bus=registry.bus, cursor_path=cursor_path, cursor_store=cursor_store)
        seen: set[int] = set()
        specs = [spec for builder in builders for spec in _rules_of(builder, seen)]
        for spec in (*specs, *registry.rules()):
            name = spec.name or f"on_{'+'.join(sorted(spec.predicate.deps))}"
            if spec.handler is None:
                raise InvalidRule(f"The rule {name!r} has no handler; give it one with spec.with_handler(…).")
            reactor.when(spec.predicate, spec.handler, name=name, priority=spec.priority, preemptive=spec.preemptive)
        return reactor


def rule_of(
    predicate: Any, handler: Handler | None = None, *, name: str = "", priority: int = 0, preemptive: bool = False
) -> RuleSpec:
    """The rule that a builder's `.on(predicate_or_signal, handler)` means; put it into its `_reactor_rules`."""
    if isinstance(predicate, Signal):
        predicate = predicate.changed
    if not isinstance(predicate, SignalPredicate):
        raise TypeError(f"on() takes a SignalPredicate or Signal, not {predicate!r}.")
    return RuleSpec(predicate, handler, name, priority, preemptive)


def _some(name: str, predicates: tuple[SignalPredicate, ...]) -> tuple[SignalPredicate, ...]:
    if not predicates:
        raise InvalidRule(f"R.{name}() needs at least one predicate.")
    return predicates


def _rules_of(builder: Any, seen: set[int]) -> Iterator[RuleSpec]:
    if id(builder) in seen:
        return
    seen.add(id(builder))
    yield from getattr(builder, "_reactor_rules", ())
    lists = getattr(builder, "_lists", None) or {}
    children = [child for name in _LISTS for child in lists.get(name, ())]
    children += [child for name in _ATTRIBUTES for child in getattr(builder, name, None) or ()]
    for child in children:
        yield from _rules_of(child, seen)
