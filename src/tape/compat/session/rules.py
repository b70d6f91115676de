"""Signals, predicates and `R` as programs of the durable event log know them: a predicate sees one change at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tape.session import predicates, registry, signals
from tape.session.arity import positional_count
from tape.session.predicates import Change, Latest
from tape.session.signals import current_tracker as current_tracker

_Change = Change

Match = Callable[[Change], bool]


class SignalPredicate(predicates.SignalPredicate):
    """Whether to act on a change, by that change alone: two signals never match `a & b` together.

    `~a` also matches changes of other signals. Apply windows last: `where`, `&`, `|` and `~` drop them.
    """

    def __init__(self, match: Match, deps: frozenset[str]) -> None:
        super().__init__(match, deps)
        self._last_fire: float | None = None
        self._last_match: float | None = None

    @classmethod
    def on_changed(cls, signal: Any) -> SignalPredicate:
        """Any change of a signal."""
        return _of(signal, lambda change: True)

    @classmethod
    def on_rising(cls, signal: Any) -> SignalPredicate:
        """A change to a greater value."""
        return _of(signal, lambda change: predicates._compare(change, above=True))

    @classmethod
    def on_falling(cls, signal: Any) -> SignalPredicate:
        """A change to a lesser value."""
        return _of(signal, lambda change: predicates._compare(change, above=False))

    @classmethod
    def on_equals(cls, signal: Any, expected: Any) -> SignalPredicate:
        """A change to a value."""
        return _of(signal, lambda change: bool(change.value == expected))

    def __and__(self, other: predicates.SignalPredicate) -> SignalPredicate:
        one, two = self._match, other._match
        return SignalPredicate(lambda change: one(change) and two(change), self.deps | other.deps)

    def __or__(self, other: predicates.SignalPredicate) -> SignalPredicate:
        one, two = self._match, other._match
        return SignalPredicate(lambda change: one(change) or two(change), self.deps | other.deps)

    def __invert__(self) -> SignalPredicate:
        inner = self._match
        return SignalPredicate(lambda change: not inner(change), self.deps)

    def where(self, fn: Callable[..., object]) -> SignalPredicate:
        """Only changes for which `fn(value, previous)`, or `fn(value)`, is true."""
        inner, takes_both = self._match, positional_count(fn) != 1

        def test(change: Change) -> bool:
            return inner(change) and bool(fn(change.value, change.previous) if takes_both else fn(change.value))

        return SignalPredicate(test, self.deps)

    def debounce(self, ms: float, *, edge: predicates.Edge = "leading") -> SignalPredicate:
        """Fire at the first of matches that follow each other within `ms`."""
        return self._with_windows(ms, self._throttle_ms)

    def throttle(self, ms: float) -> SignalPredicate:
        """Fire at most once in `ms`."""
        return self._with_windows(self._debounce_ms, ms)

    def _with_windows(self, debounce_ms: float, throttle_ms: float) -> SignalPredicate:
        made = SignalPredicate(self._match, self.deps)
        made._debounce_ms, made._throttle_ms = debounce_ms, throttle_ms
        return made

    def _fires(self, change: Change, latest: Latest) -> bool:
        if not self._match(change):
            return False
        now = change.t if change.t is not None else time.monotonic()
        last_match, self._last_match = self._last_match, now
        if _is_within(last_match, now, self._debounce_ms) or _is_within(self._last_fire, now, self._throttle_ms):
            return False
        self._last_fire = now
        return True


def _of(signal: Any, match: Match) -> SignalPredicate:
    name = predicates._name(signal)
    return SignalPredicate(lambda change: change.signal_name == name and match(change), frozenset({name}))


def _is_within(since: float | None, now: float, ms: float) -> bool:
    return ms > 0 and since is not None and (now - since) * 1_000 < ms


class Signal(signals.Signal):
    """A named value whose predicates are those of this module."""

    __slots__ = ()

    @property
    def changed(self) -> SignalPredicate:
        """True when it has any new value."""
        return SignalPredicate.on_changed(self)

    @property
    def rising(self) -> SignalPredicate:
        """True when the new value is greater."""
        return SignalPredicate.on_rising(self)

    @property
    def falling(self) -> SignalPredicate:
        """True when the new value is less."""
        return SignalPredicate.on_falling(self)

    def is_(self, expected: Any) -> SignalPredicate:
        """True when the new value equals the expected one."""
        return SignalPredicate.on_equals(self, expected)


def computed(name: str, fn: Callable[[], Any], *, bus: Any = None) -> signals.Signal:
    """A signal whose value a function computes from others."""
    return signals.computed(name, fn, bus=bus, signal_class=Signal)


class SignalRegistry(registry.SignalRegistry):
    """Signals and rules by name."""

    signal_class = Signal


default_registry = SignalRegistry()


class RegistryScope(registry.RegistryScope, SignalRegistry):
    """A registry of its own, and the one that `R` uses inside a `with` block."""


class R(registry.R):
    """Signals and rules of the registry in use."""

    _current = default_registry

    @classmethod
    def scope(cls, *, bus: Any = None) -> RegistryScope:
        """An empty registry; inside `with R.scope():` it is the one in use."""
        return RegistryScope(cls, bus=bus)
