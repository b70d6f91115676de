"""Random bytes and mutated texts never crash, hang or leak."""

from __future__ import annotations

import gc
import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tape.cel import EvaluationError, Predicate, Uint, compile_predicate
from tape.cel.predicate import _kept
from tape.cel.values import Duration, Timestamp, TypeValue
from tape.errors import InvalidPredicate
from tests.cel.generator import Generator
from tests.cel.samples import envelope

EXAMPLES = settings.default.max_examples  # more of them in proofs

SYMBOLS = (
    "&&",
    "||",
    "!",
    "?",
    ":",
    "==",
    "<",
    ">=",
    "+",
    "-",
    "*",
    "/",
    "%",
    "in",
    ".",
    ",",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
)
SPECIALS = (
    '"',
    "'",
    "'''",
    "b",
    "r",
    "\\",
    "\\u00",
    "0x",
    "u",
    "1e",
    "`",
    "//",
    "\n",
    "\0",
    "é",
    "😀",
    "null",
    "true",
    "x",
)
PIECES = SYMBOLS + SPECIALS
VALUES = (bool, int, Uint, float, str, bytes, type(None), list, dict, Timestamp, Duration, TypeValue, EvaluationError)


def survives(text: str) -> None:
    """Compile and evaluate; anything but a refusal or a value is a failure."""
    try:
        predicate = compile_predicate(text)
    except InvalidPredicate as error:
        refusal = error
    else:
        _survives_evaluation(predicate)
        return
    assert 0 <= refusal.offset <= len(text)
    assert "^" in str(refusal)


def _survives_evaluation(predicate: Predicate) -> None:
    seen = envelope()
    value = predicate.evaluate(seen)
    assert isinstance(value, VALUES)
    explanation = predicate.explain(seen)
    assert explanation.matched == predicate.matches(seen) == (value is True)
    assert explanation.render()
    assert isinstance(explanation.to_json(), dict)


def mutated(text: str, source: random.Random) -> str:
    """The text with one thing taken out, put in, doubled or swapped."""
    position, other = sorted((source.randrange(len(text) + 1), source.randrange(len(text) + 1)))
    match source.randrange(4):
        case 0:
            return text[:position] + text[other:]
        case 1:
            return text[:position] + source.choice(PIECES) + text[position:]
        case 2:
            return text[:other] + text[position:]
        case _:
            return text[other:] + text[:position]


@settings(max_examples=3 * EXAMPLES)
@given(st.text(max_size=200))
def test_random_text_is_compiled_or_refused(text: str) -> None:
    survives(text)


@settings(max_examples=2 * EXAMPLES)
@given(st.binary(max_size=200))
def test_random_bytes_are_compiled_or_refused(raw: bytes) -> None:
    survives(raw.decode("utf-8", errors="surrogateescape"))


@settings(max_examples=3 * EXAMPLES)
@given(st.lists(st.sampled_from(PIECES), max_size=40))
def test_random_tokens_are_compiled_or_refused(pieces: list[str]) -> None:
    survives(" ".join(pieces))


@pytest.mark.parametrize("seed", range(3))
def test_mutated_expressions_are_compiled_or_refused(seed: int) -> None:
    generator, source = Generator(seed), random.Random(seed)
    for _ in range(700):
        survives(mutated(mutated(generator.expression(), source), source))


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(100, 140))
def test_a_hundred_thousand_mutations_are_compiled_or_refused(seed: int) -> None:
    generator, source = Generator(seed), random.Random(seed)
    for _ in range(2_500):
        survives(mutated(mutated(generator.expression(), source), source))


def test_compiling_and_failing_over_and_over_leaks_no_memory() -> None:
    generator = Generator(1)
    texts = [generator.expression() for _ in range(200)]

    def round_trip() -> None:
        for text in texts:
            survives(text)
        _kept.cache_clear()
        gc.collect()

    for _ in range(2):
        round_trip()
    tracemalloc.start()
    round_trip()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(4):
        round_trip()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()

    assert grown < 200_000, f"{grown} bytes more after 800 texts"
