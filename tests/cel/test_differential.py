"""Thousands of random expressions mean the same here and in Google's implementation."""

from __future__ import annotations

from typing import Any

import pytest

from tape.cel import EvaluationError, compile_predicate
from tape.errors import InvalidPredicate
from tests.cel import oracle
from tests.cel.generator import Generator
from tests.cel.samples import envelope

PAIRS_PER_SEED = 1_000


def disagreement(text: str, payload: dict[str, Any]) -> str:
    """What differs between the two implementations, or the empty text."""
    seen = envelope(payload)
    theirs = oracle.evaluate(text, {**_variables(seen.entry), "payload": payload})
    try:
        predicate = compile_predicate(text)
    except InvalidPredicate as error:
        # Refusing early is right only if the oracle's checker refuses too, or if it can only fail.
        if not oracle.accepts(text) or theirs in (oracle.ERROR, oracle.INVALID):
            return ""
        return f"{text}\n  payload {payload}\n  refused: {error.reason}\n  oracle: {theirs}"
    value = predicate.evaluate(seen)
    ours = oracle.ERROR if isinstance(value, EvaluationError) else oracle.comparable(value)
    if ours == theirs:
        return ""
    reason = value.reason if isinstance(value, EvaluationError) else ""
    return f"{text}\n  payload {payload}\n  ours: {ours} {reason}\n  oracle: {theirs}"


def _variables(entry: Any) -> dict[str, Any]:
    names = ("global_seq", "seq", "ts_ms", "schema_version", "run_id", "kind", "subject", "trace_id")
    return {name: getattr(entry, name) for name in (*names, "tenant", "user", "session")}


def _disagreements(seed: int) -> list[str]:
    generator = Generator(seed)
    pairs = ((generator.expression(), generator.payload()) for _ in range(PAIRS_PER_SEED))
    return [found for text, payload in pairs if (found := disagreement(text, payload))]


@pytest.mark.parametrize("seed", range(8))
def test_random_expressions_have_the_values_that_the_oracle_gives_them(seed: int) -> None:
    found = _disagreements(seed)
    assert not found, f"{len(found)} disagreements:\n" + "\n".join(found[:10])


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(100, 150))
def test_tens_of_thousands_of_random_expressions_agree_with_the_oracle(seed: int) -> None:
    found = _disagreements(seed)
    assert not found, f"{len(found)} disagreements:\n" + "\n".join(found[:10])


def test_the_random_expressions_are_worth_asking() -> None:
    generator = Generator(0)
    outcomes = {"value": 0, "error": 0, "refused": 0}
    for _ in range(1_000):
        text, payload = generator.expression(), generator.payload()
        try:
            value = compile_predicate(text).evaluate(envelope(payload))
        except InvalidPredicate:
            outcomes["refused"] += 1
        else:
            outcomes["error" if isinstance(value, EvaluationError) else "value"] += 1

    assert outcomes["value"] > 500
    assert outcomes["error"] > 50
