"""The CPU budget of predicates: by counts of evaluations, with clocks that the tests move."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tape.base.telemetry.metrics import Metrics
from tape.cel import EntryView, compile_predicate
from tape.engine import predicate_budget
from tape.engine.predicate_budget import QUERY, REACTION, STREAM, PredicateAccount, PredicateBudget
from tape.errors import PredicateOverBudget
from tape.model.entry import Entry
from tests.engine.costly import Clocks, CostlyPredicate, entry

MS = 1e-3


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    monkeypatch.setattr(predicate_budget, "_wall", clocks.read_cpu)
    monkeypatch.setattr(predicate_budget, "_cpu", clocks.read_cpu)
    return clocks


@pytest.fixture
def budget(clocks: Clocks) -> PredicateBudget:
    return PredicateBudget(Metrics(), 50, clocks.read_time)


def evaluate(
    budget: PredicateBudget, account: PredicateAccount, predicate: Any, entries: Sequence[Entry]
) -> tuple[list[Entry], int]:
    evaluations = budget.evaluations(STREAM)
    try:
        return evaluations.filter(account, predicate, entries)
    finally:
        evaluations.close()


def evaluations_in(
    seconds: int, clocks: Clocks, budget: PredicateBudget, accounts: Sequence[PredicateAccount], predicate: Any
) -> int:
    """How many evaluations these accounts get in so many seconds, each asking ten times a second."""
    granted = 0
    for _ in range(seconds * 10):
        for account in accounts:
            granted += evaluate(budget, account, predicate, [entry()] * 100)[1]
        clocks.time += 0.1
    return granted


def test_a_cheap_predicate_uses_no_budget_however_often_it_is_evaluated(
    clocks: Clocks, budget: PredicateBudget
) -> None:
    account = budget.open(STREAM, "a", "stream")
    matching, done = evaluate(budget, account, CostlyPredicate(clocks, 9e-6), [entry()] * 100_000)
    assert (len(matching), done) == (100_000, 100_000)
    assert account.wait_s == 0
    assert account.average_s == 0


@pytest.mark.parametrize(("size", "allowed_s"), [(0, 10e-6), (10_000, 210e-6), (1_000_000, 1 * MS)])
def test_the_allowance_of_an_evaluation_grows_with_the_payload_up_to_a_millisecond(
    clocks: Clocks, budget: PredicateBudget, size: int, allowed_s: float
) -> None:
    sized = entry(json.dumps("x" * (size - 2)) if size else "")
    within, beyond = budget.open(STREAM, "a", "stream"), budget.open(STREAM, "a", "stream")
    evaluate(budget, within, CostlyPredicate(clocks, allowed_s * 0.99), [sized] * 100)
    evaluate(budget, beyond, CostlyPredicate(clocks, allowed_s * 1.1), [sized] * 100)
    assert within.average_s == 0
    assert beyond.average_s == pytest.approx(allowed_s * 0.1)


def test_an_expensive_predicate_gets_what_is_saved_and_then_25_ms_per_second(
    clocks: Clocks, budget: PredicateBudget
) -> None:
    account = budget.open(STREAM, "a", "stream")
    granted = evaluations_in(60, clocks, budget, [account], CostlyPredicate(clocks, 5 * MS))
    assert granted * 5 * MS == pytest.approx(5 * 0.025 + 60 * 0.025, abs=0.06)


def test_twenty_expensive_predicates_of_a_tenant_get_50_ms_per_second_together(
    clocks: Clocks, budget: PredicateBudget
) -> None:
    accounts = [budget.open(STREAM, "a", f"stream {number}") for number in range(20)]
    granted = evaluations_in(60, clocks, budget, accounts, CostlyPredicate(clocks, 5 * MS))
    assert granted * 5 * MS == pytest.approx(5 * 0.05 + 60 * 0.05, abs=0.1)


def test_one_evaluation_is_the_most_that_a_budget_is_exceeded_by(clocks: Clocks, budget: PredicateBudget) -> None:
    accounts = [budget.open(STREAM, "a", f"stream {number}") for number in range(20)]
    granted = [evaluate(budget, account, CostlyPredicate(clocks, 100 * MS), [entry()] * 10)[1] for account in accounts]
    assert granted == [2, 1, *[0] * 18]  # 250 ms are saved; one stream may use 125 of them


def test_other_tenants_and_other_kinds_of_work_have_budgets_of_their_own(
    clocks: Clocks, budget: PredicateBudget
) -> None:
    for number in range(3):
        spender = budget.open(STREAM, "a", f"stream {number}")
        evaluate(budget, spender, CostlyPredicate(clocks, 50 * MS), [entry()] * 10)
    assert budget.open(STREAM, "a", "another stream").wait_s > 0
    for kind, tenant in ((STREAM, "b"), (REACTION, "a"), (QUERY, "a")):
        assert budget.open(kind, tenant, "other").wait_s == 0


def test_a_budget_that_was_used_up_is_usable_again_when_a_second_of_it_is_saved(
    clocks: Clocks, budget: PredicateBudget
) -> None:
    account = budget.open(STREAM, "a", "stream")
    evaluate(budget, account, CostlyPredicate(clocks, 15.01 * MS), [entry()] * 100)
    first = account.wait_s
    assert 1 < first < 2
    clocks.time += first / 2
    assert account.wait_s == pytest.approx(first / 2)
    clocks.time += first / 2
    assert account.wait_s == 0


def test_a_predicate_of_more_than_a_millisecond_ends_its_stream_and_a_faster_one_is_slowed_down(
    clocks: Clocks, budget: PredicateBudget
) -> None:
    slow, slower = budget.open(STREAM, "a", "slow"), budget.open(STREAM, "b", "slower")
    for account, seconds in ((slow, 0.9 * MS), (slower, 1.2 * MS)):
        assert evaluate(budget, account, CostlyPredicate(clocks, seconds), [entry()] * 1_000)[1] < 1_000
        assert account.wait_s > 0
    slow.check()
    with pytest.raises(PredicateOverBudget, match=r"takes 1\.2 ms of CPU per entry.*predicate_cpu_ms_per_s"):
        slower.check()


def test_an_expensive_predicate_that_stays_within_its_budget_goes_on(clocks: Clocks, budget: PredicateBudget) -> None:
    account = budget.open(STREAM, "a", "stream")
    for _ in range(100):
        assert evaluate(budget, account, CostlyPredicate(clocks, 20 * MS), [entry()])[1] == 1
        account.check()
        clocks.time += 1


def test_a_budget_of_0_is_no_limit(clocks: Clocks) -> None:
    budget = PredicateBudget(Metrics(), 0, clocks.read_time)
    account = budget.open(STREAM, "a", "stream")
    assert evaluate(budget, account, CostlyPredicate(clocks, 1.0), [entry()] * 100)[1] == 100
    account.check()


def test_what_is_used_and_who_used_it_up_is_visible(
    clocks: Clocks, budget: PredicateBudget, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = budget._metrics
    account = budget.open(STREAM, "shop", "stream '/tape/order/**' with predicate 'x'")
    for _ in range(3):
        evaluate(budget, account, CostlyPredicate(clocks, 50 * MS), [entry()] * 10)
        clocks.time += 100
    assert metrics.registry.get_sample_value("tape_predicate_over_budget_total", {"kind": "stream"}) == 3
    seconds = metrics.registry.get_sample_value("tape_predicate_seconds_total", {"kind": "stream"})
    assert seconds == pytest.approx(3 * 3 * 0.05)
    assert [record.getMessage() for record in caplog.records] == [
        "stream '/tape/order/**' with predicate 'x' of tenant 'shop' has used its CPU budget"
        " (predicate_cpu_ms_per_s=50), about 49.99 ms per entry, and is slowed down or ended"
    ]


def test_the_time_of_other_threads_is_not_charged(clocks: Clocks, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = PredicateBudget(Metrics(), 50, clocks.read_time)
    monkeypatch.setattr(predicate_budget, "_wall", lambda: clocks.cpu * 100)  # the thread has 1 % of the processor
    account = budget.open(STREAM, "a", "stream")
    evaluate(budget, account, CostlyPredicate(clocks, 9e-6), [entry()] * 10_000)
    assert account.average_s == 0


def test_accounts_of_tenants_that_use_nothing_are_forgotten(budget: PredicateBudget) -> None:
    for number in range(2 * predicate_budget.MAX_TENANTS):
        budget.open(STREAM, f"tenant {number}", "stream")
    assert len(budget._tenants) <= predicate_budget.MAX_TENANTS


@pytest.mark.parametrize(
    ("text", "payload", "expected"),
    [
        ("payload.l.all(x, x >= 0)", {"l": [1] * 10}, True),
        ("payload.l.all(x, x >= 0)", {"l": [1] * 5_000}, None),
        ("payload.l.size() > 0", {"l": ["x" * 1_000] * 100}, None),
        ("payload.missing == 1", {}, False),
    ],
)
def test_the_event_loop_evaluates_only_what_takes_about_a_millisecond(
    budget: PredicateBudget, text: str, payload: object, expected: bool | None
) -> None:
    predicate = compile_predicate(text)
    view = EntryView(entry(json.dumps(payload)))
    account = budget.open(STREAM, "a", "stream")
    assert budget.evaluations(STREAM).matches_inline(account, predicate, view) is expected
    assert predicate.errors == (expected is False)
