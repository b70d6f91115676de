"""Limits hold as a true count and a true rate, and delay without losing."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tape.subscriptions.runtime.flow_limits import MIN_WAIT_S, FlowLimiter


class Clock:
    """A clock that is set by the test."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_without_limits_everything_is_allowed_and_nothing_is_a_limit() -> None:
    limiter = FlowLimiter()
    limiter.received(10_000)
    assert limiter.allow(500) == (500, 0.0, None, False)


def test_messages_in_flight_use_slots_until_they_are_settled() -> None:
    limiter = FlowLimiter(max_in_flight=10)
    limiter.received(limiter.allow(8).batch)
    assert limiter.allow(8) == (2, 0.0, "max_in_flight", True)
    limiter.received(2)
    assert limiter.allow(8) == (0, None, "max_in_flight", False)
    limiter.settled(9)
    assert limiter.allow(8) == (8, 0.0, None, False)


def test_a_batch_larger_than_the_limit_is_no_event_by_itself() -> None:
    assert FlowLimiter(max_in_flight=10, max_dispatch_per_sec=5).allow(500) == (5, 0.0, None, False)


def test_the_rate_is_a_bucket_that_starts_full() -> None:
    clock = Clock()
    limiter = FlowLimiter(max_in_flight=100, max_dispatch_per_sec=2, clock=clock)
    limiter.received(limiter.allow(50).batch)
    assert limiter.allow(50) == (0, 0.5, "dispatch_rate", True)
    clock.now += 0.25
    assert limiter.allow(50) == (0, 0.25, "dispatch_rate", False)
    clock.now += 0.25
    assert limiter.allow(50).batch == 1
    clock.now += 3600
    assert limiter.allow(50) == (2, 0.0, None, False)


def test_the_wait_for_a_token_is_never_a_busy_loop() -> None:
    clock = Clock()
    limiter = FlowLimiter(max_dispatch_per_sec=10_000, clock=clock)
    limiter.received(10_000)
    assert limiter.allow(1).wait_s == MIN_WAIT_S


def test_a_source_that_gives_more_than_asked_is_paid_back() -> None:
    clock = Clock()
    limiter = FlowLimiter(max_dispatch_per_sec=8, clock=clock)
    limiter.received(24)
    clock.now += 2.0
    assert limiter.allow(1).batch == 0
    clock.now += 0.125
    assert limiter.allow(1).batch == 1


def test_each_series_of_limited_answers_begins_once() -> None:
    limiter = FlowLimiter(max_in_flight=1)
    begun = []
    for _ in range(3):
        limiter.received(limiter.allow(1).batch)
        begun += [limiter.allow(1).has_begun for _ in range(4)]
        limiter.settled()
    assert begun == [True, False, False, False] * 3


def test_settling_what_was_never_received_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="only 0 are in flight"):
        FlowLimiter().settled()


async def test_waiting_for_a_slot_ends_when_a_message_is_settled() -> None:
    limiter = FlowLimiter(max_in_flight=1)
    limiter.received(1)
    waiting = asyncio.create_task(limiter.wait(limiter.allow(1)))
    await asyncio.sleep(0)
    assert not waiting.done()
    limiter.settled()
    await waiting
    assert limiter.allow(1).batch == 1


@given(st.integers(1, 50), st.integers(1, 50), st.lists(st.tuples(st.integers(0, 80), st.floats(0, 2)), max_size=30))
def test_neither_limit_is_ever_passed(limit: int, rate: int, steps: list[tuple[int, float]]) -> None:
    clock = Clock()
    begin = clock.now
    limiter = FlowLimiter(limit, rate, clock)
    total = 0
    for wanted, pause in steps:
        batch = limiter.allow(wanted).batch
        limiter.received(batch)
        total += batch
        assert limiter.in_flight <= limit
        assert total <= rate + (clock.now - begin) * rate + 1e-6
        limiter.settled(limiter.in_flight // 2)
        clock.now += pause
