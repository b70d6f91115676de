"""The cases of conformance/*.txt, written from the CEL language definition and grouped by its sections.

A line is `expression  =>  value` with the value as CEL writes it, `error` for an evaluation error or
`invalid` for a text that must not compile; ⏎ stands for a line break.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tape.cel import EvaluationError, compile_predicate
from tape.cel.display import shown
from tape.errors import InvalidPredicate
from tests.cel import oracle
from tests.cel.samples import PAYLOAD, envelope

SECTIONS = sorted((Path(__file__).parent / "conformance").glob("*.txt"))


def cases_of(section: Path) -> list[tuple[str, str]]:
    """The expressions of a section with what they must give."""
    lines = section.read_text(encoding="utf-8").splitlines()
    pairs = (line.rpartition("  =>  ") for line in lines if line and not line.startswith("# "))
    return [(expression.rstrip().replace("⏎", "\n"), expected) for expression, _, expected in pairs]


def outcome(text: str) -> str:
    """What a text gives for the sample entry, as the tables write it."""
    try:
        predicate = compile_predicate(text)
    except InvalidPredicate:
        return "invalid"
    value = predicate.evaluate(envelope())
    return "error" if isinstance(value, EvaluationError) else shown(value)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.stem)
def test_every_case_of_the_section_gives_what_the_language_definition_says(section: Path) -> None:
    wrong = [
        f"{text}  =>  {found}, expected {expected}"
        for text, expected in cases_of(section)
        if (found := outcome(text)) != expected
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.stem)
def test_the_oracle_gives_the_same_to_every_case_of_the_section(section: Path) -> None:
    sample = envelope().entry
    names = ("global_seq", "seq", "ts_ms", "run_id", "kind", "subject")
    variables = {"payload": PAYLOAD, **{name: getattr(sample, name) for name in names}}
    wrong = []
    for text, expected in cases_of(section):
        theirs = oracle.evaluate(text, variables)
        if expected == "invalid":
            agrees = not oracle.accepts(text) or theirs == oracle.ERROR
        elif expected == "error":
            agrees = theirs == oracle.ERROR
        else:
            agrees = theirs == oracle.comparable(compile_predicate(text).evaluate(envelope()))
        if not agrees:
            wrong.append(f"{text}  =>  {expected}, but the oracle has {theirs}")
    assert not wrong, "\n".join(wrong)


def test_there_are_more_than_a_thousand_cases() -> None:
    assert sum(len(cases_of(section)) for section in SECTIONS) > 1_000
