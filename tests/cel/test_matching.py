"""What a server does with a predicate: it judges entries and never breaks."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tape.cel import Duration, EntryView, EvaluationError, Timestamp, Uint, compile_predicate
from tape.cel import entry_view as view_module
from tests.cel.samples import entry, envelope

SEED_EXAMPLE = "payload.value.value_json != prev_value_json && double(payload.value.value_json) > 100.0"


def test_an_entry_matches_if_the_text_is_true_of_it() -> None:
    predicate = compile_predicate('payload.amount > 100.0 && subject.startsWith("/tape/effect/")')

    assert predicate.matches(entry({"amount": 150}))
    assert not predicate.matches(entry({"amount": 50}))
    assert not predicate.matches(entry({"amount": 150}, subject="/tape/run/started/x"))


@pytest.mark.parametrize("text", ["", "  ", "\n"])
def test_the_empty_text_matches_everything(text: str) -> None:
    assert compile_predicate(text).matches(entry())
    assert compile_predicate(text).matches(entry("not json"))


def test_the_example_predicate_matches_a_change_above_a_hundred() -> None:
    predicate = compile_predicate(SEED_EXAMPLE)

    assert predicate.matches(entry({"value": {"value_json": "150.5"}, "prev_value_json": "90"}))
    assert predicate.matches(entry({"value": {"value_json": "150.5"}}))  # there was none before
    assert not predicate.matches(entry({"value": {"value_json": "150.5"}, "prev_value_json": "150.5"}))
    assert not predicate.matches(entry({"value": {"value_json": "99"}, "prev_value_json": "1"}))
    assert predicate.errors == 0
    assert not predicate.matches(entry({"value": {"value_json": '"text"'}}))
    assert predicate.errors == 1


@pytest.mark.parametrize(
    "text",
    [
        "global_seq == 7",
        'run_id == "r"',
        "seq == 3",
        'kind == "effect"',
        'subject == "/tape/effect/confirmed/x"',
        "ts_ms == 1700000000000",
        "schema_version == 1",
        "payload.a == 1",
        'trace_id == "0af7651916cd43dd8448eb211c80319c"',
        'tenant == "acme"',
        'user == "ann"',
        'session == "s1"',
        'type == "effect.confirmed"',
        'prev_value_json == ""',
    ],
)
def test_every_variable_of_the_envelope_has_the_entrys_value(text: str) -> None:
    assert compile_predicate(text).evaluate(entry()) is True


def test_an_evaluation_error_is_no_match_and_is_counted_with_its_position() -> None:
    predicate = compile_predicate("payload.missing > 1")

    assert not predicate.matches(entry())
    assert not predicate.matches(entry())

    assert predicate.errors == 2
    error = predicate.last_error
    assert error is not None
    assert error.reason == "no such key: 'missing'"
    assert (error.line, error.column) == (1, 8)


def test_a_result_that_is_no_bool_is_no_match_and_is_counted() -> None:
    predicate = compile_predicate("payload.a")

    assert not predicate.matches(entry())
    assert predicate.errors == 1
    assert predicate.last_error is not None
    assert "int, not a bool" in predicate.last_error.reason


def test_each_caller_has_a_count_of_its_own() -> None:
    first, second = compile_predicate("payload.nope"), compile_predicate("payload.nope")

    first.matches(entry())

    assert (first.errors, second.errors) == (1, 0)


def test_an_error_value_is_false_so_that_it_is_never_taken_for_a_match() -> None:
    value = compile_predicate("payload.nope").evaluate(entry())

    assert isinstance(value, EvaluationError)
    assert not value


def test_the_payload_is_parsed_once_for_many_predicates_and_not_at_all_for_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed = []
    original = view_module.parse_payload
    monkeypatch.setattr(view_module, "parse_payload", lambda text: (parsed.append(text), original(text))[1])
    seen = envelope()

    assert compile_predicate('kind == "effect"').matches(seen)
    assert parsed == []

    assert compile_predicate("payload.a == 1").matches(seen)
    assert compile_predicate('payload.s.startsWith("h") && payload.d > 1.0').matches(seen)
    assert len(parsed) == 1


def test_a_payload_that_is_not_json_is_an_evaluation_error() -> None:
    predicate = compile_predicate("payload.a == 1")

    assert not predicate.matches(entry("{broken"))
    assert predicate.last_error is not None
    assert "cannot be parsed" in predicate.last_error.reason


@pytest.mark.parametrize(
    ("json", "text"),
    [
        ("9223372036854775807", "type(payload) == int && payload == 9223372036854775807"),
        ("-9223372036854775808", "type(payload) == int"),
        ("9223372036854775808", "type(payload) == uint && payload == 9223372036854775808u"),
        ("18446744073709551615", "type(payload) == uint"),
        ("18446744073709551616", "type(payload) == double && payload == 18446744073709551616.0"),
        ("-9223372036854775809", "type(payload) == double"),
        ("1e400", "payload > 1e308"),
        ("1.0", "type(payload) == double"),
        ('{"x": [18446744073709551615]}', "type(payload.x[0]) == uint"),
        ("1" + "0" * 400, "math.isInf(payload)"),
        ("[1, 2]", "payload[1] == 2"),
        ('"text"', 'payload == "text"'),
        ("null", "payload == null"),
        ("true", "payload"),
    ],
)
def test_json_numbers_become_int_else_uint_else_double(json: str, text: str) -> None:
    assert compile_predicate(text).evaluate(entry(json)) is True


def test_values_come_out_in_types_of_their_own() -> None:
    seen = envelope()

    assert compile_predicate("1u").evaluate(seen) == Uint(1)
    assert type(compile_predicate("1u").evaluate(seen)) is Uint
    assert compile_predicate("timestamp(1)").evaluate(seen) == Timestamp(1_000_000_000)
    assert compile_predicate('duration("1.5s")').evaluate(seen) == Duration(1_500_000_000)
    assert compile_predicate("{true: 1}").evaluate(seen) == {True: 1}
    assert len(compile_predicate("{true: 1, 1: 2}").evaluate(seen)) == 2


def test_a_value_that_is_changed_by_its_receiver_does_not_change_the_predicate() -> None:
    predicate = compile_predicate("[1, 2]")

    predicate.evaluate(entry()).append(3)

    assert predicate.evaluate(entry()) == [1, 2]


def test_a_predicate_survives_pickling_by_its_text_alone() -> None:
    predicate = compile_predicate('payload.items.exists(i, i.qty > 2) && kind == "effect"')
    predicate.matches(entry())

    copy = pickle.loads(pickle.dumps(predicate))

    assert copy == predicate
    assert copy.errors == 0
    assert copy.matches(entry({"items": [{"qty": 3}]}))
    assert len(pickle.dumps(predicate)) < 300


def test_anything_with_the_fields_of_an_entry_can_be_judged() -> None:
    class Row(msgspec.Struct):
        kind: str
        payload_json: str

    assert compile_predicate('kind == "run" && payload.ok').matches(Row("run", '{"ok": true}'))  # type: ignore[arg-type]


def test_predicates_need_neither_grpc_nor_a_database_nor_spark() -> None:
    script = (
        "import sys; from tape.cel import compile_predicate; compile_predicate('payload.a == 1');"
        "heavy = {'grpc', 'apsw', 'psycopg', 'pyspark', 'google.protobuf', 'starlette'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_envelope_keeps_no_memory_of_earlier_evaluations() -> None:
    seen = EntryView(entry({"l": list(range(1000))}))
    predicate = compile_predicate("payload.l.map(x, x * 2).size() == 1000")

    assert all(predicate.matches(seen) for _ in range(2_000))  # a budget that were not renewed would end


@pytest.mark.parametrize(
    "zone", ["localtime", "posixrules", "../etc/passwd", "/etc/localtime", "America", "", "\0", "utc "]
)
def test_a_time_zone_means_the_same_on_every_machine_or_is_an_error(zone: str) -> None:
    value = compile_predicate("timestamp(0).getHours(payload)").evaluate(entry(msgspec.json.encode(zone).decode()))

    assert value == 0 if zone == "" else isinstance(value, EvaluationError)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_any_payload_is_what_its_json_says(payload: Any) -> None:
    seen = EntryView(entry(json.dumps(payload)))

    assert same(compile_predicate("payload").evaluate(seen), payload)
    assert compile_predicate("payload == payload && payload in [payload]").evaluate(seen) is True


def same(found: Any, expected: Any) -> bool:
    """Equal, except that integers beyond uint are doubles."""
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[key], expected[key]) for key in expected)
    if type(expected) is int and not -(2**63) <= expected < 2**64:
        return type(found) is float and found == float(expected)
    return bool(found == expected)
