"""Digests: the same for the same values, however they are written, and another for other values."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tape.durable.difference import difference
from tape.durable.digest import are_different, canonical_json, check_option, digest_of, digest_of_json
from tape.errors import InvalidInput

NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(st.characters(exclude_categories=("Cs",))),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


def rewritten(value: Any, chance: random.Random) -> str:
    """The same value as another program would write it: other order of keys, spaces, escapes, forms of numbers."""
    if isinstance(value, dict):
        pairs = [f"{rewritten(name, chance)} : {rewritten(inner, chance)}" for name, inner in value.items()]
        chance.shuffle(pairs)
        return "{ " + " ,".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + " , ".join(rewritten(inner, chance) for inner in value) + " ]"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return chance.choice([str(int(value)), f"{value:.1f}", f"{int(value)}e0", f"{int(value)}.000"])
    return json.dumps(value, ensure_ascii=chance.random() < 0.5)


@given(VALUES, st.randoms(use_true_random=False))
def test_the_same_value_has_the_same_digest_however_it_is_written(value: Any, chance: random.Random) -> None:
    text = json.dumps(value)
    assert digest_of_json(rewritten(value, chance)) == digest_of_json(text)
    assert canonical_json(canonical_json(text)) == canonical_json(text)
    assert json.loads(canonical_json(text)) == json.loads(text)


def typed(value: Any) -> Any:
    """A value of which Python, too, tells apart what JSON tells apart: true is not 1."""
    if isinstance(value, dict):
        return {name: typed(inner) for name, inner in value.items()}
    return [typed(inner) for inner in value] if isinstance(value, list) else (isinstance(value, bool), value)


@given(VALUES, VALUES)
def test_two_values_have_one_digest_only_if_they_are_equal(one: Any, other: Any) -> None:
    is_same = digest_of_json(json.dumps(one)) == digest_of_json(json.dumps(other))
    assert is_same == (typed(one) == typed(other))


@pytest.mark.parametrize(("one", "other"), [("1", "true"), ("0", "false"), ('"1"', "1"), ("null", "{}"), ("[]", "{}")])
def test_values_of_another_type_are_different(one: str, other: str) -> None:
    assert digest_of_json(one) != digest_of_json(other)


def test_zero_has_no_sign() -> None:
    assert digest_of({"n": -0.0}) == digest_of({"n": 0})


def test_fields_that_vary_are_left_out_wherever_they_stand() -> None:
    first = {"at": 1, "order": {"id": 7, "at": 2}, "lines": [{"n": 1, "at": 3}]}
    second = {"at": 9, "order": {"id": 7, "at": 9}, "lines": [{"n": 1, "at": 9}]}
    option = check_option(["at", "order.at", "lines.at"], "pay")
    assert digest_of(first, option) == digest_of(second, option)
    assert digest_of(first, option) != digest_of({**first, "order": {"id": 8}}, option)
    assert digest_of(first, ["at"]) != digest_of(second, ["at"])


def test_a_function_says_what_is_compared() -> None:
    by_invoice = digest_of({"invoice": 7, "at": 1}, lambda invoice: invoice)
    assert by_invoice == digest_of({"invoice": 7, "at": 2}, lambda args: args["invoice"])
    assert digest_of({"invoice": 7}, lambda args: None) == ""
    assert digest_of({"invoice": 7}, False) == ""


@pytest.mark.parametrize("option", ["at", [""], [3]])
def test_a_wrong_digest_option_is_named(option: Any) -> None:
    with pytest.raises(InvalidInput, match="digest"):
        check_option(option, "pay")


def test_records_without_a_digest_or_of_another_version_are_accepted() -> None:
    ours = digest_of({"a": 1})
    assert not are_different("", ours)
    assert not are_different(ours, "")
    assert not are_different("9:abc", ours)
    assert are_different(digest_of({"a": 2}), ours)


def test_a_difference_names_the_fields_and_is_bounded() -> None:
    recorded = {"to": "ann", "amount": 10, "lines": [{"n": 1}], "gone": 1, "same": 1}
    ours = {"to": "bob", "amount": 10.0, "lines": [{"n": 2}], "new": True, "same": 1}
    assert difference(json.dumps(recorded), json.dumps(ours)).splitlines() == [
        'to: recorded "ann", now "bob"',
        "lines[0].n: recorded 1, now 2",
        "gone: recorded 1, now nothing",
        "new: recorded nothing, now true",
    ]
    many = difference(json.dumps({str(n): "x" * 1000 for n in range(100)}), "{}")
    assert len(many) < 4_000
    assert many.endswith("…")


def test_what_the_server_redacted_is_shown_on_neither_side() -> None:
    shown = difference('{"card": "***:1f3870be274f", "n": 1}', '{"card": "4111 1111", "n": 2}')
    assert shown == "n: recorded 1, now 2"
