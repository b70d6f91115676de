"""Retry policies, tenancy, and callbacks that get what they name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tape import RetryPolicy, TenancyConfig, TenancyMode
from tape.durable.callback_arguments import call_offering, finish
from tape.errors import InvalidConfig, InvalidInput


@given(
    attempt=st.integers(1, 10_000),
    policy=st.builds(
        RetryPolicy,
        initial_interval_s=st.floats(0, 100),
        backoff_coefficient=st.floats(1, 10),
        max_interval_s=st.floats(0, 1000),
        jitter=st.floats(0, 1),
    ),
)
def test_a_pause_is_never_negative_and_never_beyond_the_cap_and_its_jitter(attempt: int, policy: RetryPolicy) -> None:
    assert 0 <= policy.delay(attempt) <= policy.max_interval_s * (1 + policy.jitter) + 1e-9


def test_pauses_double_up_to_the_cap() -> None:
    policy = RetryPolicy(initial_interval_s=1, max_interval_s=5, jitter=0)
    assert [policy.delay(n) for n in range(1, 5)] == [1, 2, 4, 5]


def test_attempts_are_counted_and_errors_distinguished() -> None:
    policy = RetryPolicy(max_attempts=3, retry_on=(OSError,), non_retryable=(FileNotFoundError,))
    assert policy.should_retry(OSError(), 2)
    assert not policy.should_retry(OSError(), 3)
    assert not policy.should_retry(ValueError(), 1)
    assert not policy.should_retry(FileNotFoundError(), 1)
    with pytest.raises(ValueError, match="max_attempts 0"):
        RetryPolicy(max_attempts=0)


def test_a_callback_gets_what_it_names() -> None:
    offered = {"amount": 5, "run_id": "r", "args": {"amount": 5}}
    assert call_offering(lambda amount: amount, offered) == 5
    assert call_offering(lambda run_id, amount: (run_id, amount), offered) == ("r", 5)
    assert call_offering(lambda *, amount, **rest: (amount, rest), offered) == (
        5,
        {"run_id": "r", "args": {"amount": 5}},
    )
    assert call_offering(lambda payload: payload, offered, {"p": 1}) == {"p": 1}
    assert call_offering(lambda: "nothing", offered) == "nothing"
    assert call_offering(lambda amount, currency="EUR": (amount, currency), offered) == (5, "EUR")
    with pytest.raises(InvalidInput, match="one and two"):
        call_offering(lambda one, two: None, offered)


async def test_a_coroutine_is_finished_also_where_a_loop_runs_already() -> None:
    async def answer() -> int:
        return 42

    assert finish(answer()) == 42
    assert finish(7) == 7


async def test_what_a_coroutine_raises_reaches_the_caller() -> None:
    async def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        finish(broken())


def test_tenancy_comes_from_the_environment_or_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TenancyConfig.from_env() == TenancyConfig(TenancyMode.SINGLE, "default")
    monkeypatch.setenv("TAPE_TENANCY_MODE", "HARD")
    monkeypatch.setenv("TAPE_TENANT_ID", "acme")
    assert TenancyConfig.from_env() == TenancyConfig(TenancyMode.HARD, "acme")
    assert TenancyConfig.from_dict(None) == TenancyConfig()


@pytest.mark.parametrize(
    ("raw", "complaint"), [({"mode": "firm"}, "'firm' is not one of single, soft, hard"), ({"mood": 1}, "'mood'")]
)
def test_tenancy_that_makes_no_sense_is_refused(raw: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint):
        TenancyConfig.from_dict(raw)


def test_hard_tenancy_that_nothing_enforces_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TAPE_STORE", raising=False)
    assert TenancyConfig().warn_if_hard_but_unenforced() == []
    hard = TenancyConfig(TenancyMode.HARD)
    assert hard.is_hard()
    assert len(hard.warn_if_hard_but_unenforced()) == 2
    monkeypatch.setenv("TAPE_STORE", "postgres://acme")
    assert TenancyConfig(TenancyMode.HARD, "acme").warn_if_hard_but_unenforced() == []
