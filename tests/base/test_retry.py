"""One policy and two loops, with the same rules."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tape.base.retry import UNLIMITED, Backoff, RetryPolicy, retry, retry_async

AT_ONCE = RetryPolicy(max_attempts=UNLIMITED, initial_interval_s=0.0)
POLICIES = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 10),
    initial_interval_s=st.floats(0, 100),
    backoff_coefficient=st.floats(1, 10),
    max_interval_s=st.floats(0, 1_000),
    jitter=st.floats(0, 1),
)

Loop = Callable[..., Any]


def retry_in_loop(call: Callable[[], Any], policy: RetryPolicy, **options: Any) -> Any:
    async def awaited() -> Any:
        return call()

    async def run() -> Any:
        return await retry_async(awaited, policy, **options)

    return asyncio.run(run())


LOOPS = pytest.mark.parametrize("loop", [retry, retry_in_loop], ids=["sync", "asyncio"])


class Failing:
    """A call that raises what it is given, one after the other, and then returns "done"."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


class Asks(Exception):
    """An error that asks for a delay."""

    def __init__(self, retry_after_s: float) -> None:
        self.retry_after_s = retry_after_s


# ── the policy ───────────────────────────────────────────────────────────────────────────────────


@given(POLICIES, st.integers(1, 2_000))
def test_a_delay_lies_within_the_jitter_around_the_capped_interval(policy: RetryPolicy, attempt: int) -> None:
    interval = min(
        policy.initial_interval_s * policy.backoff_coefficient ** min(attempt - 1, 63), policy.max_interval_s
    )
    delay = policy.delay(attempt)
    assert interval * (1 - policy.jitter) <= delay * 1.000001 + 1e-12
    assert delay <= interval * (1 + policy.jitter) * 1.000001 + 1e-12


@given(POLICIES)
def test_no_delay_exceeds_the_cap_by_more_than_the_jitter(policy: RetryPolicy) -> None:
    assert all(
        policy.delay(attempt) <= policy.max_interval_s * (1 + policy.jitter) * 1.000001 + 1e-12
        for attempt in (1, 2, 5, 64, 10**9)
    )


@given(POLICIES)
def test_without_jitter_delays_never_shrink(policy: RetryPolicy) -> None:
    steady = RetryPolicy(
        initial_interval_s=policy.initial_interval_s,
        backoff_coefficient=policy.backoff_coefficient,
        max_interval_s=policy.max_interval_s,
        jitter=0,
    )
    delays = [steady.delay(attempt) for attempt in range(1, 80)]
    assert delays == sorted(delays)


def test_the_last_attempt_and_errors_that_are_not_retryable_are_not_retried() -> None:
    policy = RetryPolicy(max_attempts=3, retry_on=(OSError,), non_retryable=(FileNotFoundError,))
    assert [policy.should_retry(OSError(), attempt) for attempt in (1, 2, 3)] == [True, True, False]
    assert not policy.should_retry(FileNotFoundError(), 1)
    assert not policy.should_retry(ValueError(), 1)


# ── a backoff ────────────────────────────────────────────────────────────────────────────────────


def test_a_backoff_grows_with_each_failure_and_starts_again_after_a_success() -> None:
    backoff = Backoff(RetryPolicy(initial_interval_s=1, max_interval_s=5, jitter=0))
    assert [backoff.next_delay() for _ in range(4)] == [1, 2, 4, 5]
    backoff.reset()
    assert backoff.next_delay() == 1
    assert backoff.next_delay(Asks(60)) == 60
    assert backoff.next_delay(Asks(0.5)) == 4


def test_a_backoff_that_waits_ends_when_it_is_stopped() -> None:
    hour = RetryPolicy(initial_interval_s=3_600, max_interval_s=3_600)
    threads = threading.Event()
    threads.set()
    assert Backoff(hour).wait(stop=threads) is True

    async def wait() -> tuple[bool, bool]:
        loop = asyncio.Event()
        loop.set()
        return await Backoff(hour).wait_async(stop=loop), await Backoff(hour).wait_async(stop=threads)

    assert asyncio.run(wait()) == (True, True)
    assert Backoff(AT_ONCE).wait() is False
    assert Backoff(AT_ONCE).wait(stop=threading.Event()) is False


# ── the loops ────────────────────────────────────────────────────────────────────────────────────


@LOOPS
def test_a_call_is_repeated_until_it_succeeds(loop: Loop) -> None:
    seen: list[tuple[str, int, float]] = []
    call = Failing(OSError("one"), OSError("two"))
    result = loop(call, AT_ONCE, on_retry=lambda error, attempt, delay: seen.append((str(error), attempt, delay)))
    assert (result, call.calls) == ("done", 3)
    assert seen == [("one", 1, 0.0), ("two", 2, 0.0)]


@LOOPS
def test_after_the_last_attempt_the_error_is_raised(loop: Loop) -> None:
    call = Failing(*[OSError(str(number)) for number in range(9)])
    with pytest.raises(OSError, match="2"):
        loop(call, RetryPolicy(max_attempts=3, initial_interval_s=0))
    assert call.calls == 3


@LOOPS
def test_an_error_that_the_policy_or_the_caller_rejects_is_raised_at_once(loop: Loop) -> None:
    call = Failing(ValueError("bad"))
    with pytest.raises(ValueError, match="bad"):
        loop(call, RetryPolicy(retry_on=(OSError,)))
    with pytest.raises(OSError, match="gone"):
        loop(Failing(OSError("gone")), AT_ONCE, can_retry=lambda error: "busy" in str(error))
    assert loop(Failing(OSError("busy")), AT_ONCE, can_retry=lambda error: "busy" in str(error)) == "done"
    assert call.calls == 1


@LOOPS
def test_no_attempt_begins_after_the_deadline_and_the_last_one_is_made_at_it(loop: Loop) -> None:
    began, moments = time.monotonic(), []

    def call() -> None:
        moments.append(time.monotonic() - began)
        raise OSError

    policy = RetryPolicy(max_attempts=UNLIMITED, initial_interval_s=3_600, max_interval_s=3_600, jitter=0)
    with pytest.raises(OSError):
        loop(call, policy, deadline_s=0.05)
    assert len(moments) == 2
    assert moments[1] >= 0.05


@LOOPS
def test_a_stop_during_the_delay_raises_the_last_error(loop: Loop) -> None:
    stop = threading.Event()
    stop.set()
    call = Failing(OSError("down"))
    with pytest.raises(OSError, match="down"):
        loop(call, RetryPolicy(initial_interval_s=3_600, max_interval_s=3_600), stop=stop)
    assert call.calls == 1


@LOOPS
def test_a_delay_is_at_least_as_long_as_the_error_asks_for(loop: Loop) -> None:
    delays: list[float] = []
    loop(Failing(Asks(0.02)), AT_ONCE, on_retry=lambda error, attempt, delay: delays.append(delay))
    assert delays == [0.02]


def test_cancelling_ends_the_asyncio_loop_at_once() -> None:
    async def fail() -> None:
        raise OSError

    async def run() -> None:
        hour = RetryPolicy(initial_interval_s=3_600, max_interval_s=3_600)
        delaying = asyncio.Event()
        task: Awaitable[None] = asyncio.ensure_future(retry_async(fail, hour, on_retry=lambda *_: delaying.set()))
        await delaying.wait()
        task.cancel()  # type: ignore[attr-defined]
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())
