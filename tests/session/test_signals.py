"""Signals, what is computed from them, and predicates over their changes."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tape import Change, EventBus, Signal, computed, reaction, track_reads
from tape.errors import InvalidRule


def test_only_a_change_raises_the_version_and_notifies() -> None:
    bus = EventBus(max_buffer=10)
    signal = Signal("temp", 20, bus=bus)
    seen: list[Any] = []
    off = signal.subscribe(lambda new, previous: seen.append((new, previous)))
    assert signal.set(21)
    assert not signal.set(21)
    assert signal.set(21, force=True)
    assert signal.update(lambda value: value + 1)
    off()
    signal.set(0)
    assert seen == [(21, 20), (21, 21), (22, 21)]
    assert signal.version == 4
    event = bus.buffer[0]
    assert (event.kind, event.name, event.version, event.value, event.previous) == ("signal_changed", "temp", 1, 21, 20)


def test_a_subscriber_may_take_only_the_new_value() -> None:
    seen: list[Any] = []
    signal = Signal("a")
    signal.subscribe(lambda value: seen.append(value))
    signal.set(1)
    assert seen == [1]


def test_a_subscriber_that_raises_stays_and_does_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    def broken(value: int) -> None:
        raise ValueError("no")

    signal, seen = Signal("a"), []
    signal.subscribe(broken)
    signal.subscribe(lambda value: seen.append(value))
    signal.set(1)
    assert seen == [1]
    assert str(signal.errors[0]) == "no"
    assert "A subscriber" in caplog.text


def test_a_subscriber_that_sets_the_signal_again_is_notified_in_order() -> None:
    signal, seen = Signal("a", 0), []
    signal.subscribe(lambda value: signal.set(min(value + 1, 3)))
    signal.subscribe(lambda value: seen.append(value))
    signal.set(1)
    assert seen == [1, 2, 3]


def test_updates_from_many_threads_all_count_and_are_notified_in_order() -> None:
    bus = EventBus()
    tape = bus.tape()
    signal = Signal("count", 0, bus=bus)

    def count() -> None:
        for _ in range(300):
            signal.update(lambda value: value + 1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert signal.value == 1200
    assert [entry["version"] for entry in tape.events] == list(range(1, 1201))


def test_values_that_do_not_compare_count_as_changed() -> None:
    class Array:
        def __eq__(self, other: object) -> Any:
            raise ValueError("ambiguous")

        __hash__ = None  # type: ignore[assignment]

    assert Signal("a", Array()).set(Array())


def test_computed_follows_what_it_read_last() -> None:
    use_a, a, b = Signal("use", True), Signal("a", 1), Signal("b", 10)
    runs: list[int] = []

    def pick() -> int:
        runs.append(1)
        return a.get() if use_a.get() else b.get()  # type: ignore[no-any-return]

    picked = computed("picked", pick)
    assert picked.value == 1
    b.set(11)
    assert len(runs) == 1
    use_a.set(False)
    assert picked.value == 11
    b.set(12)
    assert picked.value == 12
    a.set(2)
    assert len(runs) == 3


def test_a_diamond_is_computed_once_and_never_half() -> None:
    source = Signal("source", 1)
    left = computed("left", lambda: source.get() + 1)
    right = computed("right", lambda: source.get() * 10)
    seen: list[tuple[int, int]] = []
    both = computed("both", lambda: seen.append((left.get(), right.get())) or (left.get(), right.get()))
    source.set(2)
    assert seen == [(2, 10), (3, 20)]
    assert both.value == (3, 20)


def test_an_error_while_computing_keeps_the_old_value() -> None:
    source = Signal("source", 1)
    inverse = computed("inverse", lambda: 1 / source.get())
    source.set(0)
    assert inverse.value == 1
    assert isinstance(inverse.errors[0], ZeroDivisionError)
    source.set(2)
    assert inverse.value == 0.5
    with pytest.raises(ZeroDivisionError):
        computed("broken", lambda: 1 / 0)


def test_a_reaction_runs_until_it_is_stopped(caplog: pytest.LogCaptureFixture) -> None:
    signal, seen = Signal("a", 1), []

    def react() -> None:
        seen.append(signal.get())
        if signal.value == 3:
            raise ValueError("three")

    off = reaction(react)
    signal.set(2)
    signal.set(3)
    signal.set(4)
    off()
    signal.set(5)
    assert seen == [1, 2, 3, 4]
    assert "A reaction failed" in caplog.text


def test_tracked_reads_are_those_made_with_get() -> None:
    a, b = Signal("a"), Signal("b")
    with track_reads() as reading:
        a.get()
        _ = b.value
    assert reading == {a}


# ── predicates ───────────────────────────────────────────────────────────────────────────────────


def change(name: str, value: Any, previous: Any = None, *, seq: int = 0, t: float = 0.0) -> Change:
    return Change(name, value, previous, seq, t)


def test_rising_falling_changed_and_equal() -> None:
    signal = Signal("a")
    assert signal.changed.matches(change("a", 1, 2))
    assert not signal.changed.matches(change("b", 1, 2))
    assert signal.rising.matches(change("a", 2, 1))
    assert not signal.rising.matches(change("a", 1, None))
    assert signal.falling.matches(change("a", 1, 2))
    assert signal.is_((1, 2)).matches(change("a", [1, 2]))
    assert signal.is_true.matches(change("a", "yes"))
    assert not signal.is_true.matches(change("a", 0))
    assert signal.changed.where(lambda value: value > 5).matches(change("a", 6))
    assert not signal.changed.where(lambda value, previous: value > previous).matches(change("a", 6, 7))


def test_and_over_two_signals_means_that_both_are_true_now() -> None:
    hot, dry = Signal("heat").changed.where(lambda value: value > 30), Signal("dry").is_(True)
    both = hot & dry
    assert both.deps == {"heat", "dry"}
    assert not both.matches(change("heat", 35))
    assert both.matches(change("dry", True))
    assert not both.matches(change("heat", 20))
    assert not both.matches(change("dry", True))
    assert both.matches(change("heat", 31))
    assert not both.matches(change("other", 1))


def test_a_part_that_stays_true_counts_on_every_change() -> None:
    any_and = (Signal("a").is_(1) | Signal("c").is_(1)) & Signal("b").is_(1)
    assert not any_and.matches(change("c", 1))
    assert any_and.matches(change("b", 1))
    assert any_and.matches(change("a", 0))
    neither = ~(Signal("a").is_(1) | Signal("c").is_(1))
    assert not neither.matches(change("c", 1))
    assert not neither.matches(change("a", 0))
    assert neither.matches(change("c", 0))


def test_a_window_within_and_counts_the_changes_it_lets_pass() -> None:
    both = Signal("a").changed.throttle(1_000) & Signal("b").is_(1)
    both.matches(change("b", 1, t=0.0))
    assert both.matches(change("a", 1, t=0.1))
    assert not both.matches(change("a", 2, t=0.2))
    assert both.matches(change("a", 3, t=1.2))


def test_or_fires_on_the_change_that_makes_a_side_true() -> None:
    either = Signal("a").is_(1) | Signal("b").is_(1)
    assert either.matches(change("a", 1))
    assert not either.matches(change("b", 0))
    assert either.matches(change("b", 1))


def test_not_fires_only_on_changes_of_its_own_signals() -> None:
    off = ~Signal("a").is_(1)
    assert off.matches(change("a", 0))
    assert not off.matches(change("a", 1))
    assert not off.matches(change("b", 0))
    assert Signal("a").is_(1).not_().matches(change("a", 2))


def test_windows_go_by_the_time_of_the_tape() -> None:
    debounced = Signal("a").changed.debounce(50)
    times = [0.0, 0.02, 0.04, 0.06, 0.12, 0.18]
    assert [debounced.matches(change("a", n, t=t)) for n, t in enumerate(times)] == [1, 0, 0, 0, 1, 1]
    throttled = Signal("a").changed.throttle(50)
    assert [throttled.matches(change("a", n, t=t)) for n, t in enumerate(times)] == [1, 0, 0, 1, 1, 1]


def test_windows_survive_composition() -> None:
    throttled = Signal("a").changed.throttle(1_000).where(lambda value: True) | Signal("b").changed
    assert throttled.matches(change("a", 1, t=0.0))
    assert not throttled.matches(change("a", 2, t=0.5))
    assert throttled.matches(change("b", 1, t=0.5))


def test_invalid_predicates_raise_when_they_are_declared() -> None:
    a = Signal("a").changed
    with pytest.raises(InvalidRule, match="applied last"):
        _ = a.debounce(10, edge="trailing") & a
    with pytest.raises(InvalidRule, match="more than 0"):
        a.throttle(0)
    with pytest.raises(InvalidRule, match="leading"):
        a.debounce(10, edge="both")  # type: ignore[arg-type]
    with pytest.raises(InvalidRule, match="combine with &"):
        _ = a and a
    with pytest.raises(InvalidRule, match="no predicate"):
        _ = a & True  # type: ignore[operator]
