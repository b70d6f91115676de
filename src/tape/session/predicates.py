"""When a rule fires: predicates over changes of signals, which combine with `&`, `|` and `~`.

`a & b` means that both are true now: each side is asked about the latest change of its own signals. `a | b` fires on a
change that makes a side true. `~a` fires on a change of a's signals that leaves it false.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from tape.errors import InvalidRule
from tape.session.arity import positional_count
from tape.session.lines import plain

Edge = Literal["leading", "trailing"]


@dataclass(frozen=True, slots=True)
class Change:
    """A signal changed: what handlers and `where` get. `token` is that of the rule's agent, while a handler runs.

    Two are equal if the signal, its value and its previous value are.
    """

    signal_name: str
    value: Any = None
    previous: Any = None
    seq: int = field(default=-1, compare=False)
    t: float | None = field(default=None, compare=False)
    token: Any = field(default=None, compare=False)


_Change = Change  # its name in code that was written for the event log of the agents' harness


Latest = Mapping[str, Change]
Test = Callable[[Change], bool]


class SignalPredicate:
    """Whether a change is worth acting on. `deps` are the names of the signals it looks at."""

    has_window = False
    # The windows of the predicate itself, not those of its parts; 0 is none.
    _debounce_ms: float = 0
    _throttle_ms: float = 0

    def __init__(self, match: Test, deps: frozenset[str]) -> None:
        self._match = match
        self.deps = frozenset(deps)
        self._seen: dict[str, Change] = {}

    # ── where they come from ─────────────────────────────────────────────────────────────────────

    @classmethod
    def on_changed(cls, signal: Any) -> SignalPredicate:
        """Any change of a signal."""
        return SignalPredicate(lambda change: True, frozenset({_name(signal)}))

    @classmethod
    def on_rising(cls, signal: Any) -> SignalPredicate:
        """A change to a greater value."""
        return SignalPredicate(lambda change: _compare(change, above=True), frozenset({_name(signal)}))

    @classmethod
    def on_falling(cls, signal: Any) -> SignalPredicate:
        """A change to a lesser value."""
        return SignalPredicate(lambda change: _compare(change, above=False), frozenset({_name(signal)}))

    @classmethod
    def on_equals(cls, signal: Any, expected: Any) -> SignalPredicate:
        """A change to a value; compared as the tape says it, so that a tuple equals its list."""
        wanted = plain(expected)
        return SignalPredicate(lambda change: bool(plain(change.value) == wanted), frozenset({_name(signal)}))

    # ── how they combine ─────────────────────────────────────────────────────────────────────────

    def __and__(self, other: SignalPredicate) -> SignalPredicate:
        return _Both(_part(self), _part(other))

    def __or__(self, other: SignalPredicate) -> SignalPredicate:
        return _Either(_part(self), _part(other))

    def __invert__(self) -> SignalPredicate:
        return _Not(_part(self))

    def not_(self) -> SignalPredicate:
        """The same as `~`."""
        return ~self

    def __bool__(self) -> NoReturn:
        raise InvalidRule("A predicate is neither true nor false by itself: combine with &, | and ~, not and/or/not.")

    def where(self, fn: Callable[..., object]) -> SignalPredicate:
        """Only changes for which `fn(value, previous)`, or `fn(value)`, is true."""
        takes_both = positional_count(fn) != 1

        def test(change: Change) -> bool:
            return bool(fn(change.value, change.previous) if takes_both else fn(change.value))

        return _Where(_part(self), test)

    def debounce(self, ms: float, *, edge: Edge = "leading") -> SignalPredicate:
        """Fire once for matches that follow each other within `ms`: at the first (leading), or `ms` after the last.

        A trailing one is applied last. Times are those of the tape, so that a replay fires as the session did.
        """
        if edge not in ("leading", "trailing"):
            raise InvalidRule(f'edge {edge!r} must be "leading" or "trailing".')
        return _Trailing(_part(self), _window(ms)) if edge == "trailing" else _Debounce(_part(self), _window(ms))

    def throttle(self, ms: float) -> SignalPredicate:
        """Fire at most once in `ms`."""
        return _Throttle(_part(self), _window(ms))

    # ── how they are asked ───────────────────────────────────────────────────────────────────────

    def matches(self, change: Change, latest: Latest | None = None) -> bool:
        """Whether to act on a change; `latest` is the last change of every signal, this one included.

        Without it the predicate remembers the changes it was asked about.
        """
        if latest is None:
            self._seen[change.signal_name] = change
            latest = self._seen
        return self._fires(change, latest)

    def _fires(self, change: Change, latest: Latest) -> bool:
        return change.signal_name in self.deps and self._match(change)

    def _holds(self, latest: Latest) -> bool:
        return any(name in latest and self._match(latest[name]) for name in self.deps)


class _Both(SignalPredicate):
    def __init__(self, one: SignalPredicate, other: SignalPredicate) -> None:
        super().__init__(lambda change: True, one.deps | other.deps)
        self._sides = (one, other)
        self.has_window = one.has_window or other.has_window

    def _fires(self, change: Change, latest: Latest) -> bool:
        if change.signal_name not in self.deps or not self._holds(latest):
            return False
        # Both are true now; sides with a window that look at this signal must also let this change pass.
        windowed = [side for side in self._sides if side.has_window and change.signal_name in side.deps]
        passed = [side._fires(change, latest) for side in windowed]  # all are asked: windows count every match
        return all(passed)

    def _holds(self, latest: Latest) -> bool:
        return all(side._holds(latest) for side in self._sides)


class _Either(_Both):
    def _fires(self, change: Change, latest: Latest) -> bool:
        fired = [side._fires(change, latest) for side in self._sides]  # both are asked: windows count every match
        return any(fired)

    def _holds(self, latest: Latest) -> bool:
        return any(side._holds(latest) for side in self._sides)


class _Not(SignalPredicate):
    def __init__(self, inner: SignalPredicate) -> None:
        super().__init__(lambda change: True, inner.deps)
        self._inner = inner

    def _fires(self, change: Change, latest: Latest) -> bool:
        return change.signal_name in self.deps and not self._inner._holds(latest)

    def _holds(self, latest: Latest) -> bool:
        return not self._inner._holds(latest)


class _Where(SignalPredicate):
    def __init__(self, inner: SignalPredicate, test: Test) -> None:
        super().__init__(test, inner.deps)
        self._inner = inner
        self.has_window = inner.has_window

    def _fires(self, change: Change, latest: Latest) -> bool:
        return self._inner._fires(change, latest) and self._match(change)

    def _holds(self, latest: Latest) -> bool:
        newest = max((latest[name] for name in self.deps if name in latest), key=lambda each: each.seq, default=None)
        return newest is not None and self._inner._holds(latest) and self._match(newest)


class _Window(SignalPredicate):
    """Lets some of the matches of another predicate pass, by the time between them."""

    has_window = True

    def __init__(self, inner: SignalPredicate, ms: float) -> None:
        super().__init__(lambda change: True, inner.deps)
        self._inner = inner
        self.ms = ms
        self._since: float | None = None
        self._debounce_ms, self._throttle_ms = inner._debounce_ms, inner._throttle_ms
        self._name_window()

    def _name_window(self) -> None:
        self._debounce_ms = self.ms

    def _holds(self, latest: Latest) -> bool:
        return self._inner._holds(latest)

    def _is_within(self, now: float) -> bool:
        return self._since is not None and 0 <= (now - self._since) * 1_000 < self.ms


class _Throttle(_Window):
    def _name_window(self) -> None:
        self._throttle_ms = self.ms

    def _fires(self, change: Change, latest: Latest) -> bool:
        now = _time_of(change)
        if not self._inner._fires(change, latest) or self._is_within(now):
            return False
        self._since = now
        return True


class _Debounce(_Window):
    def _fires(self, change: Change, latest: Latest) -> bool:
        if not self._inner._fires(change, latest):
            return False
        now = _time_of(change)
        is_first = not self._is_within(now)
        self._since = now
        return is_first


class _Trailing(_Window):
    """Matches like what it wraps; the reactor waits `trailing_ms` after the last match before it acts."""

    def _fires(self, change: Change, latest: Latest) -> bool:
        return self._inner._fires(change, latest)


def trailing_ms(predicate: SignalPredicate) -> float:
    """How long to wait after the last match before acting; 0 for predicates that act at once."""
    return predicate.ms if isinstance(predicate, _Trailing) else 0.0


def _name(signal: Any) -> str:
    return signal if isinstance(signal, str) else str(signal.name)


def _time_of(change: Change) -> float:
    return change.t if change.t is not None else time.monotonic()


def _part(predicate: SignalPredicate) -> SignalPredicate:
    if not isinstance(predicate, SignalPredicate):
        raise InvalidRule(f"{predicate!r} is no predicate; take one from a signal, such as signal.rising.")
    if isinstance(predicate, _Trailing):
        raise InvalidRule("A trailing debounce waits before it acts, so it must be applied last, to the whole.")
    return predicate


def _window(ms: float) -> float:
    if ms <= 0:
        raise InvalidRule(f"A window of {ms!r} ms must be more than 0.")
    return ms


def _compare(change: Change, *, above: bool) -> bool:
    try:
        return bool(change.value > change.previous if above else change.value < change.previous)
    except TypeError:  # no order between them, as with the first value after None
        return False
