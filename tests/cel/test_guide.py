"""Everything that docs/predicates.md says is so."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from tape.cel import VARIABLES, EntryView, compile_predicate
from tape.cel.functions import FUNCTIONS, METHODS
from tape.cli.cel import EntryFile
from tests.cel import oracle
from tests.cel.samples import PAYLOAD
from tests.cel.test_conformance import outcome

GUIDE = (Path(__file__).parents[2] / "docs" / "predicates.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def examples() -> list[tuple[str, bool]]:
    found = []
    for example in block("cel").strip().split("\n\n"):
        text, _, result = example.rpartition("// → ")
        found.append((text.strip(), result.strip() == "true"))
    return found


def differences() -> list[tuple[str, str, str]]:
    rows = re.findall(
        r"^\| `(.+?)` \| `(.+?)` \| `(.+?)` \| .+ \|$", GUIDE.partition("## Where we differ")[2], re.MULTILINE
    )
    return [(text, ours, theirs) for text, ours, theirs in rows]


def test_there_are_twenty_examples() -> None:
    assert len(examples()) == 20


@pytest.mark.parametrize(("text", "result"), examples())
def test_an_example_has_the_result_beside_it(text: str, result: bool) -> None:
    entry = msgspec.json.decode(block("json"), type=EntryFile).to_entry()

    assert compile_predicate(text).evaluate(EntryView(entry)) is result


def test_every_variable_and_function_is_in_the_guide() -> None:
    words = set(re.findall(r"[A-Za-z_]+", GUIDE))
    names = {name.rpartition(".")[2] for name in (*VARIABLES, *FUNCTIONS, *METHODS)}

    assert names - words == {"getDayOfMonth"}  # which is getDate, but from 0


@pytest.mark.parametrize(("text", "ours", "theirs"), differences())
def test_a_difference_that_is_listed_is_still_one(text: str, ours: str, theirs: str) -> None:
    assert outcome(text) == ours
    if theirs == "invalid":
        assert not oracle.accepts(text)
    else:
        assert oracle.shown(text, {"payload": PAYLOAD}) == theirs


def test_the_differences_are_found_in_the_guide() -> None:
    assert len(differences()) >= 15
