"""Signals: values with change notification, and values computed from them."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tape.session.arity import positional_count
from tape.session.events import SignalChanged
from tape.session.lines import plain
from tape.session.predicates import SignalPredicate

MAX_ERRORS = 100

_tracker: ContextVar[set[Signal] | None] = ContextVar("tape_tracker", default=None)


class Signal:
    """A named value. Setting another value raises its version, calls subscribers, and emits SignalChanged on its bus.

    `get()` is seen by `computed` and `reaction`, `value` is not. Safe to use from several threads.
    """

    __slots__ = (
        "_bus",
        "_changes",
        "_depth",
        "_lock",
        "_notifying",
        "_subscribers",
        "_value",
        "_version",
        "errors",
        "name",
    )

    def __init__(self, name: str, initial: Any = None, *, bus: Any = None) -> None:
        self.name = name
        self.errors: deque[Exception] = deque(maxlen=MAX_ERRORS)
        self._value = initial
        self._version = 0
        self._bus = bus
        self._depth = 0
        self._lock = threading.Lock()
        self._notifying = threading.Lock()
        self._changes: deque[tuple[Any, Any, int]] = deque()
        self._subscribers: tuple[tuple[Callable[[Any, Any], object], object], ...] = ()

    def __repr__(self) -> str:
        return f"Signal({self.name!r}, {self._value!r}, version={self._version})"

    @property
    def version(self) -> int:
        """How often it has changed."""
        return self._version

    @property
    def value(self) -> Any:
        """The value, without being tracked."""
        return self._value

    def get(self) -> Any:
        """The value; `computed` and `reaction` run again when it changes."""
        reading = _tracker.get()
        if reading is not None:
            reading.add(self)
        return self._value

    def set(self, value: Any, *, force: bool = False) -> bool:
        """Set the value; returns whether it changed. With `force` an equal value counts as a change."""
        with self._lock:
            if not force and _equal(self._value, value):
                return False
            self._change(value)
        self._announce()
        return True

    def update(self, fn: Callable[[Any], Any]) -> bool:
        """Set it to a function of its value, atomically."""
        with self._lock:
            value = fn(self._value)
            if _equal(self._value, value):
                return False
            self._change(value)
        self._announce()
        return True

    def subscribe(self, fn: Callable[..., object]) -> Callable[[], None]:
        """Call `fn(new, previous)`, or `fn(new)`, after each change; call the result to unsubscribe."""
        takes_both = positional_count(fn) != 1
        entry = ((fn if takes_both else lambda new, previous: fn(new)), object())
        with self._lock:
            self._subscribers = (*self._subscribers, entry)

        def off() -> None:
            with self._lock:
                self._subscribers = tuple(each for each in self._subscribers if each is not entry)

        return off

    def attach(self, bus: Any) -> Signal:
        """Emit changes on this bus from now on."""
        self._bus = bus
        return self

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

    @property
    def is_true(self) -> SignalPredicate:
        """True when the new value is true."""
        return self.changed.where(lambda value, previous: bool(value))

    def _change(self, value: Any) -> None:
        self._changes.append((value, self._value, self._version + 1))
        self._value = value
        self._version += 1

    def _announce(self) -> None:
        """Notify subscribers of changes in order and outside of the lock; one thread at a time does it for all."""
        while self._changes and self._notifying.acquire(blocking=False):
            try:
                with _propagation():
                    while self._changes:
                        self._notify(*self._changes.popleft())
            finally:
                self._notifying.release()

    def _notify(self, value: Any, previous: Any, version: int) -> None:
        for call, _ in self._subscribers:
            try:
                call(value, previous)
            except Exception as error:
                self._failed(error)
        if self._bus is not None:
            self._bus.emit(SignalChanged(name=self.name, version=version, value=plain(value), previous=plain(previous)))

    def _failed(self, error: Exception) -> None:
        if not self.errors:
            import logging

            logging.getLogger("tape.session").error("A subscriber of %r failed", self, exc_info=error)
        self.errors.append(error)


def _equal(one: Any, other: Any) -> bool:
    try:
        return one is other or bool(one == other)
    except Exception:  # arrays and the like, which do not say whether they are equal
        return False


# ── what is computed from signals ────────────────────────────────────────────────────────────────


def current_tracker() -> set[Signal] | None:
    """The set that collects reads of signals, inside `track_reads`."""
    return _tracker.get()


@contextmanager
def track_reads() -> Iterator[set[Signal]]:
    """The set of signals that are read with `get()` inside the block."""
    reading: set[Signal] = set()
    token = _tracker.set(reading)
    try:
        yield reading
    finally:
        _tracker.reset(token)


class _Wave(threading.local):
    """What has to run after the outermost `set`: the nearest to the source first, each once."""

    def __init__(self) -> None:
        self.level = 0
        self.queue: list[tuple[int, int, _Follower]] = []
        self.count = itertools.count()


_wave = _Wave()


@contextmanager
def _propagation() -> Iterator[None]:
    _wave.level += 1
    try:
        yield
        if _wave.level == 1:
            while _wave.queue:
                heapq.heappop(_wave.queue)[2].run()
    finally:
        _wave.level -= 1


class _Follower:
    """Runs a function again whenever a signal changes that it read the last time."""

    def __init__(self, fn: Callable[[], object], done: Callable[[Any, int], None], failed: Callable[[Exception], None]):
        self._fn = fn
        self._done = done
        self._failed = failed
        self._offs: dict[Signal, Callable[[], None]] = {}
        self._is_queued = False
        self._is_over = False

    def run(self, *, first: bool = False) -> None:
        self._is_queued = False
        if self._is_over:
            return
        try:
            with track_reads() as reading:
                result = self._fn()
        except Exception as error:
            if first:
                raise
            self._failed(error)
            return
        self._follow(reading)
        self._done(result, 1 + max((signal._depth for signal in reading), default=0))

    def stop(self) -> None:
        self._is_over = True
        self._follow(set())

    def _follow(self, reading: set[Signal]) -> None:
        for signal in self._offs.keys() - reading:
            self._offs.pop(signal)()
        for signal in reading - self._offs.keys():
            self._offs[signal] = signal.subscribe(lambda new, previous, signal=signal: self._queue(signal))

    def _queue(self, signal: Signal) -> None:
        if not self._is_queued:
            self._is_queued = True
            heapq.heappush(_wave.queue, (signal._depth, next(_wave.count), self))


def computed(name: str, fn: Callable[[], Any], *, bus: Any = None, signal_class: type[Signal] | None = None) -> Signal:
    """A signal whose value a function computes from others; it follows whatever the function read last.

    An error in the function keeps the old value and is kept in `errors`; the first computation raises it.
    """
    signal = (signal_class or Signal)(name, bus=bus)

    def done(value: Any, depth: int) -> None:
        signal._depth = depth
        if is_first:
            signal._value = value
        else:
            signal.set(value)

    follower = _Follower(fn, done, signal._failed)
    is_first = True
    follower.run(first=True)
    is_first = False
    return signal


def reaction(fn: Callable[[], object]) -> Callable[[], None]:
    """Run a function now and whenever a signal changes that it read the last time; call the answer to stop that."""

    def failed(error: Exception) -> None:
        import logging

        logging.getLogger("tape.session").error("A reaction failed: %r", fn, exc_info=error)

    follower = _Follower(fn, lambda result, depth: None, failed)
    follower.run(first=True)
    return follower.stop
