"""An explanation shows every sub-expression with its value, and which one decided."""

from __future__ import annotations

import json
from textwrap import dedent

import pytest

from tape.cel import EvaluationError, TraceStep, compile_predicate
from tests.cel.samples import entry, envelope


def explained(text: str) -> str:
    return compile_predicate(text).explain(envelope()).render()


def decided(text: str) -> str:
    return compile_predicate(text).explain(envelope()).decided.expression


def test_the_tree_shows_values_and_what_was_not_needed() -> None:
    shown = explained('payload.d > 100.0 && subject.startsWith("/tape/effect/")')

    assert (
        shown
        == dedent("""
        payload.d > 100.0 && subject.startsWith("/tape/effect/")  →  false
        ├─ payload.d > 100.0  →  false   ◄ decided
        │  └─ payload.d  →  1.5
        └─ subject.startsWith("/tape/effect/")  →  not evaluated
        """).strip()
    )


def test_a_macro_shows_each_element_it_came_to() -> None:
    shown = explained("payload.l.exists(x, x > 1)")

    assert (
        shown
        == dedent("""
        payload.l.exists(x, x > 1)  →  true
        ├─ payload.l  →  [1, 2, 3]
        ├─ [x = 1] x > 1  →  false
        │  └─ x  →  1
        └─ [x = 2] x > 1  →  true   ◄ decided
           └─ x  →  2
        """).strip()
    )


def test_an_error_is_shown_where_it_arose() -> None:
    shown = explained("payload.zz > 1 || payload.a == 2")

    assert "payload.zz  →  error: no such key: 'zz'   ◄ decided" in shown
    assert "payload.a == 2  →  false" in shown


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("payload.a == 1 && payload.d == 1.5", "payload.a == 1 && payload.d == 1.5"),
        ("payload.a == 1 && payload.d == 2.5", "payload.d == 2.5"),
        ("payload.a == 2 || payload.d == 1.5", "payload.d == 1.5"),
        ("payload.a == 1 && (payload.t || payload.zz) && kind == 'run'", "kind == 'run'"),
        ("payload.zz > 1 && kind == 'run'", "kind == 'run'"),
        ("payload.t ? payload.a == 2 : payload.zz", "payload.a == 2"),
        ("!(payload.a == 1)", "payload.a == 1"),
        ("payload.l.all(x, x < 3)", "x < 3"),
        ("payload.l.all(x, x < 9)", "payload.l.all(x, x < 9)"),
        ("payload.l.map(x, x / 0)", "x / 0"),
        ("kind", "kind"),
    ],
)
def test_the_smallest_expression_that_decides_is_marked(text: str, expression: str) -> None:
    assert decided(text) == expression


def test_the_json_form_has_the_same_and_is_json() -> None:
    explanation = compile_predicate("payload.l.exists(x, x > 1) && payload.zz").explain(entry())

    found = json.loads(json.dumps(explanation.to_json()))

    assert found["matched"] is False
    assert found["decided"] == "payload.zz"
    macro, missing = found["trace"]["steps"]
    assert macro["value"] is True
    assert [step.get("element") for step in macro["steps"]] == [None, "x = 1", "x = 2"]
    assert missing["error"] == {"reason": "no such key: 'zz'", "line": 1, "column": 38}
    assert missing["decided"] is True


@pytest.mark.parametrize(
    "text",
    [
        'bytes("é")',
        'timestamp("2024-01-01T00:00:00Z")',
        'duration("1.5s")',
        "1u",
        "{true: 1u, 1: 2}",
        "0.0 / 0.0",
        "type(1)",
    ],
)
def test_values_that_json_lacks_are_shown_in_it(text: str) -> None:
    json.dumps(compile_predicate(text).explain(entry()).to_json(), allow_nan=False)


def test_explaining_does_not_count_errors_and_gives_what_evaluating_gives() -> None:
    predicate = compile_predicate("payload.zz")

    explanation = predicate.explain(entry())

    assert predicate.errors == 0
    assert isinstance(explanation.value, EvaluationError)
    assert explanation.value == predicate.evaluate(entry())


def test_the_empty_text_is_explained_too() -> None:
    explanation = compile_predicate("").explain(entry())

    assert explanation.matched
    assert "everything matches" in explanation.render()


def test_a_long_list_is_not_recorded_to_its_end() -> None:
    explanation = compile_predicate("payload.all(x, x >= 0)").explain(entry(list(range(20_000))))

    assert explanation.matched
    assert len(explanation.root.steps) < 1_100
    assert all(isinstance(step, TraceStep) for step in explanation.root.steps)
