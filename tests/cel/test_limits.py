"""No text can hang a server."""

from __future__ import annotations

import time

import pytest

from tape.cel import LIMITS, EvaluationError, PredicateLimits, compile_predicate
from tape.cel.predicate import _kept
from tape.errors import InvalidPredicate
from tests.cel.samples import entry, envelope


def test_a_text_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidPredicate, match=r"16385 characters; 16384 are allowed"):
        compile_predicate("1" * (LIMITS.length + 1))


@pytest.mark.parametrize(
    "text", ["(" * 200 + "1" + ")" * 200, "[" * 200 + "]" * 200, "+".join("1" * 200), "true" + "?true:true" * 200]
)
def test_a_text_that_is_too_deep_is_refused(text: str) -> None:
    with pytest.raises(InvalidPredicate, match=r"levels"):
        compile_predicate(text)


def test_a_thousand_alternatives_are_not_deep() -> None:
    text = " || ".join(f'kind == "k{number}"' for number in range(800))

    assert not compile_predicate(text).matches(entry())
    assert compile_predicate(text).matches(entry(kind="k799"))


def test_macros_nest_only_so_far() -> None:
    def nested(levels: int) -> str:
        text = "true"
        for level in range(levels):
            text = f"payload.l.all(x{level}, {text})"
        return text

    assert compile_predicate(nested(LIMITS.nesting)).matches(entry())
    with pytest.raises(InvalidPredicate, match="more than 4 macros inside each other"):
        compile_predicate(nested(LIMITS.nesting + 1))


@pytest.mark.parametrize(
    "text",
    [
        "payload.l.all(a, payload.l.all(b, payload.l.all(c, payload.l.all(d, a + b + c + d >= 0))))",
        "payload.l.map(a, payload.l.map(b, payload.l.map(c, c))).size() > 0",
        "payload.l.all(a, payload == payload)",
        "payload.l.all(a, payload.l.all(b, a in payload.l))",
        "payload.l.all(a, payload.l in [payload.l, payload.l])",
        "payload.l.all(a, payload.s.contains('zz') || true)",
        "payload.l.all(a, payload.s.matches('(x+x+)+y') || true)",
        "payload.l.all(a, payload.s.matches(payload.p) || true)",
        "payload.l.all(a, 'x'.matches('(x|y)*z' + string(a)) || true)",
        "payload.l.all(a, 'x'.matches('\\\\pL{900}' + string(a)) || true)",
        "payload.l.exists(a, 'x'.matches('(' + string(a)))",
        "payload.l.exists(a, 'x'.matches('((a{100}){100}){100}' + string(a)))",
        "payload.l.all(a, payload.l.all(b, timestamp(0).getHours(string(a)) == 1 || true))",
        "payload.l.all(a, payload.l.all(b, '%.1000f'.format([1.5]) != ''))",
        "payload.l.all(a, payload.l.all(b, double(payload.digits) > 1.0))",
        "payload.l.all(a, payload.l.all(b, int(payload.s) > 1 || true))",
        "payload.l.all(a, payload.l.all(b, payload.m.exists(k, true)))",
        "payload.l.all(a, payload.l.all(b, payload.same[0] == payload.long))",
        "payload.l.all(a, payload.l.all(b, payload.same[1] >= payload.long))",
        "payload.l.all(a, payload.l.all(b, payload.long in payload.same))",
        "payload.l.all(a, payload.l.all(b, payload.long.startsWith(payload.same[0])))",
        "payload.l.all(a, payload.l.all(b, math.greatest(payload.l) > 1))",
        "payload.l.all(a, payload.l.all(b, '%s'.format([payload.m]) != ''))",
        "payload.l.all(a, payload.l.all(b, payload.l + payload.l != []))",
        "payload.l.all(a, payload.l.all(b, timestamp(payload.digits) > timestamp(0) || true))",
        "payload.l.all(a, payload.l.all(b, duration(payload.digits + 's') > duration('1s') || true))",
        "payload.l.all(a, payload.s.reverse().trim() != '')",
        "payload.l.all(a, 'a'.replace('a', payload.s) != '')",
        "payload.l.all(a, payload.s.split('') != [])",
        "payload.l.all(a, '%s'.format([payload.s]) != '')",
        "[payload.s]" + ".map(a, a + a)" * 60 + ".size() > 0",
        "[payload.l]" + ".map(a, a + a)" * 60 + ".size() > 0",
        "[payload.s]" + ".map(a, a.replace('', a))" * 10 + ".size() > 0",
        "[payload.s]" + ".map(a, a.split('').join(a))" * 10 + ".size() > 0",
        "[payload.s]" + ".map(a, '%s%s'.format([a, a]))" * 60 + ".size() > 0",
        " || ".join(["payload != payload"] * 400),
        "payload.m.map(k, payload.m) == []",
        "payload.m.map(k, payload.m) == payload.m.map(k, payload.m)",
        "payload.m.map(k, payload.m)",
        "payload.l.map(a, payload.l.map(b, payload.l))",
        "payload.m in payload.m.map(k, payload.m)",
        " || ".join(["payload.s.matches('(x+x+)+y')"] * 400),
    ],
)
def test_no_text_takes_longer_than_its_budget(text: str) -> None:
    seen = envelope(
        {
            "l": list(range(2_000)),
            "s": "x" * 20_000,
            "long": "x" * 300_000,
            "same": ["x" * 300_000, "x" * 299_999 + "y"],
            "p": "(x*)*y",
            "digits": "1" * 4_000,
            "m": {str(number): [number] for number in range(20_000)},
        }
    )

    started = time.process_time()
    predicate = compile_predicate(text)
    value = predicate.evaluate(seen)
    predicate.matches(seen)
    predicate.explain(seen)
    took = time.process_time() - started

    assert isinstance(value, EvaluationError | bool)
    assert took < 3.0, f"{took:.1f} s"


@pytest.mark.parametrize(
    "text",
    [
        "payload.l.all(a, payload.l.all(b, payload.l.all(c, true)))",
        "payload.l.all(a, payload.l.all(b, payload.l.all(c, true))) || has(payload.l)",
        "[payload.s]" + ".map(a, a + a)" * 60 + " == []",
    ],
)
def test_a_limit_that_is_hit_is_an_evaluation_error_that_nothing_absorbs(text: str) -> None:
    value = compile_predicate(text).evaluate(envelope({"l": list(range(2_000)), "s": "x" * 20_000}))

    assert isinstance(value, EvaluationError)
    assert "steps" in value.reason or "allowed" in value.reason


def test_the_budget_is_the_callers_to_set() -> None:
    text = "payload.l.all(x, x >= 0)"
    seen = envelope({"l": list(range(1_000))})

    assert compile_predicate(text).evaluate(seen) is True
    assert isinstance(compile_predicate(text, PredicateLimits(steps=100)).evaluate(seen), EvaluationError)


def test_a_payload_nested_beyond_all_measure_is_an_evaluation_error() -> None:
    deep = "[" * 50_000 + "]" * 50_000

    assert isinstance(compile_predicate("payload == [1]").evaluate(entry(deep)), EvaluationError)


def test_comparing_deep_payloads_with_themselves_is_no_crash() -> None:
    deep = "[" * 900 + "]" * 900

    value = compile_predicate("payload == payload").evaluate(entry(deep))

    assert value is True or isinstance(value, EvaluationError)


@pytest.mark.parametrize("pattern", ["(a|b)*a(a|b){14}c", "((a*)*)*c", "(a?){40}a{40}c", "(x+x+)+y"])
def test_a_pattern_that_other_engines_die_of_is_answered_in_linear_time(pattern: str) -> None:
    text = "ab" * 50_000
    predicate = compile_predicate("payload.text.matches(payload.pattern)")

    started = time.process_time()
    misses = predicate.evaluate(entry({"text": text, "pattern": pattern}))
    hits = predicate.evaluate(entry({"text": text + "ab" * 8 + "a" * 40 + "c" + "xxy", "pattern": pattern}))

    assert (misses, hits) == (False, True)
    assert time.process_time() - started < 2.0


def test_a_long_text_is_not_kept_after_its_predicate_is_gone() -> None:
    kept = _kept.cache_info().currsize

    compile_predicate(" || ".join(f"seq == {number}" for number in range(500)))

    assert _kept.cache_info().currsize == kept
